"""WebDataset's tar files by index: where each member lies is found once, then samples come in any order."""

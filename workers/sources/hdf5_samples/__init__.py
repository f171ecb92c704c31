"""HDF5 files with one data set for each sample, and its labels in attributes."""

"""Lists of JPEG and PNG files: the list, and reading, decoding and turning one picture."""

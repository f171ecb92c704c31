"""LMDB databases of Caffe's Datum records."""

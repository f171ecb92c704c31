"""The names in scripts written for pycaffe: nets and solvers with NumPy arrays, io, NetSpec; see blobfeed.caffe."""

"""What scripts written for pycaffe use: nets and solvers with NumPy arrays, io, NetSpec; see blobfeed.caffe."""

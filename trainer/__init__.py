"""The embedded trainer, for where no Caffe is installed: prototxt → a net of torch modules → solver → snapshots.

Reading a prototxt needs no torch; `trainer.graph`, `trainer.solver` and what they import do.
"""

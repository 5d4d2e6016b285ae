"""What kernels written in Triton do, seen without a GPU: in its interpreter, and by its compiler up to PTX."""

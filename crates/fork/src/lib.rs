//! Fork in constant time however big the heap, and snapshots that reset in microseconds, on unmodified kernels.

"""The interactive page: its kernels are plain ES modules in `kernels/`, compared with the library by the tests."""

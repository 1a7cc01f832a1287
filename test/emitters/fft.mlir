// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Lines side by side in the lanes of a vector; twiddle factors are a table of the kernel.
// CHECK: memref.global "private" constant @[[T:kernel_0_fft_table_0]] : memref<{{[0-9]+}}x4x2xf32>
// CHECK: func.func @kernel_0_fft(%arg0: memref<64x625xcomplex<f32>>
// CHECK: memref.get_global @[[T]]
// CHECK: vector.load {{.*}} vector<{{[0-9]+}}xf32>
func.func public @main(%x: tensor<64x625xcomplex<f32>>) -> tensor<64x625xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [625] : (tensor<64x625xcomplex<f32>>) -> tensor<64x625xcomplex<f32>>
  return %0 : tensor<64x625xcomplex<f32>>
}

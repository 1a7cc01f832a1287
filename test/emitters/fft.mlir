// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Lines side by side in the lanes of a vector: rows are transposed in registers on the way in and out. Two groups of
// 25 points, each two steps of 5 by way of a tile; twiddle factors are tables of the kernel.
// CHECK:     memref.global "private" constant @[[STEP:kernel_0_fft_table_1]] : memref<5x4x2xf32>
// CHECK:     memref.global "private" constant @[[GROUP:kernel_0_fft_table_0]] : memref<25x25x2xf32>
// CHECK:     func.func @kernel_0_fft(%arg0: memref<64x625xcomplex<f32>>
// CHECK:     vector.load {{.*}} vector<[[LANES:[0-9]+]]xf32>
// CHECK:     vector.shuffle {{.*}} : vector<[[LANES]]xf32>
// CHECK:     memref.get_global @[[STEP]]
// CHECK:     memref.get_global @[[GROUP]]
// CHECK:     memref.get_global @[[STEP]]
// CHECK-NOT: memref.get_global
func.func public @main(%x: tensor<64x625xcomplex<f32>>) -> tensor<64x625xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [625] : (tensor<64x625xcomplex<f32>>) -> tensor<64x625xcomplex<f32>>
  return %0 : tensor<64x625xcomplex<f32>>
}

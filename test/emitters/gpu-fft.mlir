// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// Two lines a block, four planes of 1024 values; three steps of radix 8, a barrier after the load and after each.
// CHECK-LABEL: gpu.func @kernel_0_fft(
// CHECK-SAME:    workgroup(%[[A:[a-z0-9]+]] : memref<1024xf32, #gpu.address_space<workgroup>>
// CHECK-SAME:    known_block_size = array<i32: 128, 1, 1>, known_grid_size = array<i32: 32, 1, 1>
// CHECK-COUNT-4: gpu.barrier
// CHECK-NOT:     gpu.barrier
// CHECK:         gpu.return

// PTX: .visible .entry kernel_0_fft(
// PTX-NOT: __local_depot
// PTX-COUNT-4: bar.sync
func.func public @main(%x: tensor<64x512xcomplex<f32>>) -> tensor<64x512xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [512] : (tensor<64x512xcomplex<f32>>) -> tensor<64x512xcomplex<f32>>
  return %0 : tensor<64x512xcomplex<f32>>
}

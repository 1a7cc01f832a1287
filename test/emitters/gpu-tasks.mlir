// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s

// A kind without a GPU emitter runs as the tasks of its CPU kernel, one a thread: here a matrix of the batch.
// CHECK-LABEL: func.func private @kernel_0_cholesky_task(
// CHECK:       gpu.func @kernel_0_cholesky(
// CHECK-SAME:    known_block_size = array<i32: 6, 1, 1>
// CHECK:         memref.view
// CHECK:         func.call @kernel_0_cholesky_task
// CHECK:         gpu.return
func.func public @main(%x: tensor<6x8x8xf32>) -> tensor<6x8x8xf32> {
  %0 = stablehlo.cholesky %x, lower = true : tensor<6x8x8xf32>
  return %0 : tensor<6x8x8xf32>
}

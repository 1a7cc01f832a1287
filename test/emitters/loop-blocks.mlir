// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Rows of two elements make blocks of at least 64: a task's place takes divisions, that of an element in it none.
// CHECK-LABEL: func.func @kernel_0_loop(
// CHECK:       scf.for %[[BLOCK:.*]] = %arg{{[0-9]+}} to
// CHECK-COUNT-2: arith.divui
// CHECK-NOT:   arith.divui
// CHECK:       scf.for {{.*}} to %c40
// CHECK:       scf.for {{.*}} to %c2
// CHECK-NOT:   arith.
// CHECK:       memref.load
// CHECK:       memref.store
func.func public @main(%x: tensor<8x20x40xf32>) -> tensor<8x40x80xf32> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1, 3] : (tensor<8x20x40xf32>) -> tensor<8x20x2x40x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<8x20x2x40x2xf32>) -> tensor<8x40x80xf32>
  return %1 : tensor<8x40x80xf32>
}

// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Data movement is index arithmetic: nothing but the result is stored, and the padded edge is selected, not branched to.
// CHECK-LABEL: func.func @kernel_0_loop
// CHECK-SAME:    (%[[X:.*]]: memref<6x8xf32> {llvm.noalias}, %[[Y:.*]]: memref<4x6xf32> {llvm.noalias},
// CHECK-NOT:     memref.alloc
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK-NOT:         scf.if
// CHECK:             memref.load %[[X]]
// CHECK:             arith.select
// CHECK:             memref.store %{{.*}}, %[[Y]]
// CHECK-NOT:         memref.store
func.func public @main(%a: tensor<6x8xf32>) -> tensor<1x4x6xf32> {
  %0 = stablehlo.slice %a [1:5:2, 2:6] : (tensor<6x8xf32>) -> tensor<2x4xf32>
  %z = stablehlo.constant dense<1.0> : tensor<f32>
  %1 = stablehlo.pad %0, %z, low = [1, 1], high = [1, 1], interior = [0, 0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4x6xf32>
  %2 = stablehlo.reverse %1, dims = [0] : tensor<4x6xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [1, 2] : (tensor<4x6xf32>) -> tensor<1x4x6xf32>
  return %3 : tensor<1x4x6xf32>
}

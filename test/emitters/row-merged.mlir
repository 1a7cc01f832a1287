// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=kernels | filecheck %s

// Where a value is the same along one of them, each has its loop.
// CHECK-LABEL: func.func @kernel_1_row
// CHECK-NOT:   arith.constant 285 : index
// CHECK:       arith.constant 15 : index
// CHECK:       scf.for
// CHECK:       arith.constant 19 : index
// CHECK:       scf.for

// An image's two dimensions are run over in one loop.
// CHECK-LABEL: func.func @kernel_0_row
// CHECK:       scf.for
// CHECK:       arith.constant 196 : index
// CHECK:       scf.for
// CHECK:       arith.addf {{.*}} fastmath<reassoc>
// CHECK-NOT:   scf.for
func.func public @main(%a: tensor<64x14x14xf32>, %b: tensor<64x15x19xf32>, %c: tensor<15xf32>)
    -> (tensor<64xf32>, tensor<64xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1, 2]
    : (tensor<64x14x14xf32>, tensor<f32>) -> tensor<64xf32>
  %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<15xf32>) -> tensor<64x15x19xf32>
  %2 = stablehlo.multiply %b, %1 : tensor<64x15x19xf32>
  %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [1, 2]
    : (tensor<64x15x19xf32>, tensor<f32>) -> tensor<64xf32>
  return %0, %3 : tensor<64xf32>, tensor<64xf32>
}

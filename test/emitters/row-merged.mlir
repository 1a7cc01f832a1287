// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=kernels | filecheck %s

// An image's two dimensions are run over in one loop, whole vectors of which are summed side by side.
// CHECK-LABEL: func.func @kernel_0_row
// CHECK:       scf.for
// CHECK:       arith.constant 196 : index
// CHECK:       scf.for
// CHECK:       arith.addf {{.*}} fastmath<reassoc>
// CHECK-NOT:   scf.for
func.func public @main(%a: tensor<64x14x14xf32>) -> tensor<64xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1, 2] : (tensor<64x14x14xf32>, tensor<f32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}

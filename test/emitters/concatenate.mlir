// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// A row is one loop for each part; the exponential is computed where it is stored, and nothing branches.
// CHECK-LABEL: func.func @kernel_0_concatenate
// CHECK:         scf.for
// CHECK-NOT:       scf.if
// CHECK:           scf.for %{{.*}} = %{{.*}} to %c32
// CHECK:             memref.load %arg0
// CHECK:             memref.store
// CHECK-NOT:       scf.if
// CHECK:           scf.for %{{.*}} = %{{.*}} to %c16
// CHECK:             memref.load %arg1
// CHECK:             memref.store
func.func public @main(%a: tensor<64x32xf32>, %b: tensor<64x16xf32>) -> tensor<64x48xf32> {
  %e = stablehlo.negate %a : tensor<64x32xf32>
  %0 = stablehlo.concatenate %e, %b, dim = 1 : (tensor<64x32xf32>, tensor<64x16xf32>) -> tensor<64x48xf32>
  return %0 : tensor<64x48xf32>
}

// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Rows too wide to be held in registers are added four at a time, neighbours or (without AVX-512) a quarter of a block
// apart, as a tree, into a row of accumulators in the workspace; what is left of a block follows row by row.
// CHECK-LABEL: func.func @kernel_0_column(
// CHECK-SAME:    %[[X:.*]]: memref<100x4096xf32> {llvm.noalias}
// CHECK:         %[[P:.*]] = memref.view %arg2
// CHECK:         scf.for
// CHECK:         %[[Q:.*]] = arith.divui %{{.*}}, %c4
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK-COUNT-4:     memref.load %[[X]]
// CHECK-COUNT-3:     arith.addf
// CHECK:             memref.load %[[P]]
// CHECK:             arith.addf
// CHECK:             memref.store %{{.*}}, %[[P]]
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK:             memref.load %[[X]]
// CHECK-NOT:         memref.load %[[X]]
// CHECK:             memref.store %{{.*}}, %[[P]]
// CHECK-LABEL: func.func @kernel_0_column_1(
func.func public @main(%a: tensor<100x4096xf32>) -> tensor<4096xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<100x4096xf32>, tensor<f32>) -> tensor<4096xf32>
  return %0 : tensor<4096xf32>
}

// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: %gristmill compile %s --emit=ll | filecheck %s --check-prefix=LL

// A reduction of the major dimension: blocks of rows are accumulated into partials, then the partials are combined.
// CHECK-LABEL: func.func @kernel_0_column(
// CHECK-SAME:    %[[X:.*]]: memref<512x512xf32> {llvm.noalias}, %arg1: memref<512xf32> {llvm.noalias}, %arg2: memref<{{[0-9]+}}xi8>
// CHECK:         memref.view %arg2
// CHECK:         scf.for
// CHECK:             memref.load %[[X]]
// CHECK:             arith.addf {{.*}} fastmath<reassoc>
// CHECK-LABEL: func.func @kernel_0_column_1(
// CHECK:         arith.addf
// CHECK:         memref.store %{{.*}}, %arg1

// LL: define void @kernel_0_column(
// LL: fadd reassoc <{{8|16}} x float>
func.func public @main(%a: tensor<512x512xf32>) -> tensor<512xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<512x512xf32>, tensor<f32>) -> tensor<512xf32>
  return %0 : tensor<512xf32>
}

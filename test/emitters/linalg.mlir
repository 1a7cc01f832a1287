// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// A panel of the right-hand side in registers while solved rows are subtracted; a square root per row.
// CHECK-LABEL: func.func @kernel_0_cholesky(
// CHECK:         scf.for {{.*}} iter_args({{.*}}) -> (vector<{{[0-9]+}}xf32>
// CHECK:         math.sqrt
// CHECK-LABEL: func.func @kernel_1_triangular_solve(
// CHECK:         scf.for {{.*}} iter_args({{.*}}) -> (vector<{{[0-9]+}}xf32>
// CHECK:         arith.divf {{.*}} : vector<{{[0-9]+}}xf32>
func.func public @main(%a: tensor<32x32xf32>, %b: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %0 = stablehlo.cholesky %a, lower = true : tensor<32x32xf32>
  %1 = "stablehlo.triangular_solve"(%0, %b) {left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  return %1 : tensor<32x64xf32>
}

// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// One key: rows are sorted as integers by a vector network, in scratch.
// CHECK-LABEL: func.func @kernel_0_sort(
// CHECK-SAME:    %arg0: memref<8x100xf32>
// CHECK:         memref.load %arg0
// CHECK:         arith.bitcast {{.*}} : f32 to i32
// CHECK:         vector.shuffle
// CHECK:         arith.minsi {{.*}} : vector<{{[0-9]+}}xi32>

// A lexicographic comparator: tuples are merged.
// CHECK-LABEL: func.func @kernel_1_sort(
// CHECK-NOT:     vector.shuffle
// CHECK:         scf.while
func.func public @main(%x: tensor<8x100xf32>, %a: tensor<8x100xi32>)
    -> (tensor<8x100xf32>, tensor<8x100xf32>, tensor<8x100xi32>) {
  %0 = "stablehlo.sort"(%x) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %r = stablehlo.compare LT, %p, %q, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<8x100xf32>) -> tensor<8x100xf32>
  %1:2 = "stablehlo.sort"(%0, %a) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>, %s: tensor<i32>, %t: tensor<i32>):
    %r = stablehlo.compare LT, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %u = stablehlo.compare LT, %s, %t, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %v = stablehlo.compare EQ, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %w = stablehlo.and %u, %v : tensor<i1>
    %o = stablehlo.or %r, %w : tensor<i1>
    stablehlo.return %o : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<8x100xf32>, tensor<8x100xi32>) -> (tensor<8x100xf32>, tensor<8x100xi32>)
  return %0, %1#0, %1#1 : tensor<8x100xf32>, tensor<8x100xf32>, tensor<8x100xi32>
}

// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile --emit=kernels %s | filecheck %s

// 88 columns are three panels of 24 and one of 16. A tile asks for the next tile's rows and sums, multiplies, and stores
// plain vectors; only the last panel's tiles store under masks.
// CHECK-LABEL: func.func @{{.*}}_compute(
// CHECK: memref.prefetch {{.*}}, read
// CHECK: memref.prefetch {{.*}}, write
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>
// CHECK-COUNT-12: vector.fma
// CHECK: scf.if
// CHECK-COUNT-12: vector.store
// CHECK-NOT: vector.store
// CHECK: else
// CHECK-COUNT-12: vector.maskedstore
func.func @main(%a: tensor<64x96xf32>, %b: tensor<96x88xf32>) -> tensor<64x88xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<64x96xf32>, tensor<96x88xf32>) -> tensor<64x88xf32>
  return %0 : tensor<64x88xf32>
}

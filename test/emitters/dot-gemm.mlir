// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile --emit=kernels %s | filecheck %s --check-prefix=AVX2

// Several row blocks share the right operand, so a first phase packs it: 32 columns, two vectors, a row.
// CHECK-LABEL: func.func @{{.*}}_pack(
// CHECK-SAME: memref<2048x64xf32>
// CHECK: memref.view %arg3
// CHECK: scf.for
// CHECK: scf.for
// CHECK: vector.load {{.*}} : memref<4096xf32>, vector<16xf32>
// CHECK: vector.store {{.*}} : memref<4096xf32>, vector<16xf32>
// CHECK: vector.load
// CHECK: vector.store
// CHECK-NOT: vector.store

// The register tile: sums carried by the loop over k, a broadcast a row, a multiply-add a vector.
// CHECK-LABEL: func.func @{{.*}}_compute(
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<16xf32>
// CHECK: vector.load {{.*}} vector<16xf32>
// CHECK: vector.load {{.*}} vector<16xf32>
// CHECK: memref.load
// CHECK: vector.broadcast {{.*}} : f32 to vector<16xf32>
// CHECK-NEXT: vector.fma
// CHECK-NEXT: vector.fma
// CHECK: memref.load
// CHECK: vector.broadcast
// CHECK-NEXT: vector.fma
// CHECK-NEXT: vector.fma
// CHECK: scf.yield
// CHECK: vector.store {{.*}} : memref<131072xf32>, vector<16xf32>

// AVX2-LABEL: func.func @{{.*}}_compute(
// AVX2: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>
// AVX2: vector.fma {{.*}} : vector<8xf32>
func.func @main(%a: tensor<2048x64xf32>, %b: tensor<64x64xf32>) -> tensor<2048x64xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
  return %0 : tensor<2048x64xf32>
}

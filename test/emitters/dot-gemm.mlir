// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile --emit=kernels %s | filecheck %s --check-prefix=AVX2

// The left operand lies transposed and several panels of columns read it: a first phase packs it to the workspace.
// CHECK-LABEL: func.func @{{.*}}_pack(%arg0: memref<64x24xf32>
// CHECK: memref.view %arg3
// CHECK: scf.for
// CHECK: scf.for
// CHECK: scf.for
// CHECK: memref.load
// CHECK: memref.store

// The register tile of six rows by four vectors: sums carried by the loop over k, four loads of the right operand,
// which so few rows read where it lies, then a broadcast a row and a multiply-add a vector.
// CHECK-LABEL: func.func @{{.*}}_compute(
// CHECK: memref.view %arg3
// CHECK: scf.for %{{.*}} = %arg5 to %arg6
// CHECK: scf.for
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<16xf32>
// CHECK-COUNT-4: vector.load {{.*}} : memref<12288xf32>, vector<16xf32>
// CHECK: memref.load
// CHECK: vector.broadcast {{.*}} : f32 to vector<16xf32>
// CHECK-COUNT-24: vector.fma
// CHECK-NOT: vector.fma
// CHECK: scf.yield
// CHECK-COUNT-24: vector.store {{.*}} : memref<4608xf32>, vector<16xf32>

// AVX2-LABEL: func.func @{{.*}}_compute(
// AVX2: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>
// AVX2: vector.fma {{.*}} : vector<8xf32>
func.func @main(%a: tensor<64x24xf32>, %b: tensor<64x192xf32>) -> tensor<24x192xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0]
    : (tensor<64x24xf32>, tensor<64x192xf32>) -> tensor<24x192xf32>
  return %0 : tensor<24x192xf32>
}

// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile --emit=kernels %s | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile --emit=kernels %s | filecheck %s --check-prefix=TALL

// Eight rows against rows of a matrix, 16 registers: 32 steps of k are added to a tile of 4 rows by 3 vectors of sums
// in scratch, then to one of the next rows.
// CHECK-LABEL: func.func @{{.*}}_compute(%arg0: memref<8x1024xf32> {llvm.noalias}, %arg1: memref<1024x1024xf32>
// CHECK: scf.for
// CHECK: scf.for
// CHECK-COUNT-12: vector.load {{.*}} vector<8xf32>
// CHECK: %c32{{.*}} = arith.constant 32 : index
// CHECK: %{{[0-9]+}}:12 = scf.for
// CHECK-COUNT-3: vector.load {{.*}} : memref<1048576xf32>, vector<8xf32>
// CHECK-COUNT-12: vector.fma
// CHECK-COUNT-12: vector.store
// CHECK-COUNT-12: vector.load {{.*}} vector<8xf32>

// Eight columns, one vector: LLVM is kept from unrolling the steps of k.
// TALL-LABEL: func.func @{{.*}}_compute(%arg0: memref<4096x64xf32> {llvm.noalias}, %arg1: memref<64x8xf32>
// TALL: scf.for
// TALL-COUNT-14: vector.fma
// TALL: } {llvm.loop_annotation = #loop_annotation}
func.func @main(%a: tensor<8x1024xf32>, %b: tensor<1024x1024xf32>, %c: tensor<4096x64xf32>, %d: tensor<64x8xf32>)
    -> (tensor<8x1024xf32>, tensor<4096x8xf32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<8x1024xf32>, tensor<1024x1024xf32>) -> tensor<8x1024xf32>
  %1 = stablehlo.dot_general %c, %d, contracting_dims = [1] x [0]
    : (tensor<4096x64xf32>, tensor<64x8xf32>) -> tensor<4096x8xf32>
  return %0, %1 : tensor<8x1024xf32>, tensor<4096x8xf32>
}

// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s --check-prefix=STREAMED
// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s --check-prefix=DOTTED

// One row against rows of a matrix: eight rows of k at a time are added to a block of sums in scratch.
// STREAMED-LABEL: func.func @{{.*}}_compute(%arg0: memref<512xf32> {llvm.noalias}, %arg1: memref<512x512xf32>
// STREAMED: scf.for
// STREAMED: vector.broadcast
// STREAMED: scf.for
// STREAMED-COUNT-8: vector.load {{.*}} : memref<262144xf32>, vector<16xf32>
// STREAMED: vector.load
// STREAMED-COUNT-8: vector.fma
// STREAMED: vector.store

// A matrix times a vector: the operands are exchanged, and rows are dot products held in vectors.
// DOTTED-LABEL: func.func @{{.*}}_compute(%arg0: memref<512x512xf32> {llvm.noalias}, %arg1: memref<512xf32>
// DOTTED: scf.for {{.*}} iter_args({{.*}}) -> (vector<16xf32>
// DOTTED: vector.load {{.*}} : memref<512xf32>, vector<16xf32>
// DOTTED: vector.load {{.*}} : memref<262144xf32>, vector<16xf32>
// DOTTED: vector.fma
// DOTTED: vector.shuffle {{.*}} [8, 9, 10, 11, 12, 13, 14, 15]
// DOTTED: vector.extract
func.func @main(%m: tensor<512x512xf32>, %x: tensor<512xf32>) -> (tensor<512xf32>, tensor<512xf32>) {
  %0 = stablehlo.dot_general %x, %m, contracting_dims = [0] x [0]
    : (tensor<512xf32>, tensor<512x512xf32>) -> tensor<512xf32>
  %1 = stablehlo.dot_general %m, %x, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512xf32>) -> tensor<512xf32>
  return %0, %1 : tensor<512xf32>, tensor<512xf32>
}

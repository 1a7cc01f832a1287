// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=ll %s | filecheck %s --check-prefix=LL

// Two phases: the right operands are packed to the workspace, then a task computes one block of rows. Its scores are
// written to scratch, made into exponentials there and read from there; the sums of the rows divide the output.
// CHECK-LABEL: func.func @kernel_0_attention(
// CHECK:         memref.view %arg4
// CHECK:         memref.view %arg4
// CHECK-LABEL: func.func @kernel_0_attention_1(
// CHECK-SAME:    memref<2x64x16xf32> {llvm.noalias}, %[[WORK:.*]]: memref<24576xi8> {llvm.noalias}, %[[SCRATCH:.*]]: memref<14592xi8> {llvm.noalias}
// CHECK:         %[[SCORES:.*]] = memref.view %[[SCRATCH]]
// CHECK:         %[[SUMS:.*]] = memref.view %[[SCRATCH]]
// CHECK:         vector.fma
// CHECK:         vector.store %{{.*}}, %[[SCORES]]
// CHECK:         %[[ROW:.*]] = memref.view %[[SCRATCH]]
// CHECK:         memref.store %{{.*}}, %[[ROW]]
// CHECK:         arith.addf {{.*}} fastmath<reassoc>
// CHECK-NOT:     arith.divf
// CHECK:         memref.load %[[SCORES]]
// CHECK:         vector.fma
// CHECK:         vector.store %{{.*}}, %[[SUMS]]
// CHECK:         memref.load %[[SUMS]]
// CHECK:         arith.divf
// CHECK:         memref.store %{{.*}}, %arg3
// CHECK-NOT:   func.func

// The rows and the division are vectorised too.
// LL: define void @kernel_0_attention_1
// LL: fadd reassoc <{{8|16}} x float>
// LL: fdiv <{{8|16}} x float>
// LL-NOT: call {{.*}} @exp
func.func public @main(%q: tensor<2x64x16xf32>, %k: tensor<2x96x16xf32>, %v: tensor<2x96x16xf32>) -> tensor<2x64x16xf32> {
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x64x16xf32>, tensor<2x96x16xf32>) -> tensor<2x64x96xf32>
  %1 = stablehlo.reduce(%0 init: %n) applies stablehlo.maximum across dimensions = [2] : (tensor<2x64x96xf32>, tensor<f32>) -> tensor<2x64xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x96xf32>
  %3 = stablehlo.subtract %0, %2 : tensor<2x64x96xf32>
  %4 = stablehlo.exponential %3 : tensor<2x64x96xf32>
  %5 = stablehlo.reduce(%4 init: %z) applies stablehlo.add across dimensions = [2] : (tensor<2x64x96xf32>, tensor<f32>) -> tensor<2x64xf32>
  %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x96xf32>
  %7 = stablehlo.divide %4, %6 : tensor<2x64x96xf32>
  %8 = stablehlo.dot_general %7, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x64x96xf32>, tensor<2x96x16xf32>) -> tensor<2x64x16xf32>
  return %8 : tensor<2x64x16xf32>
}

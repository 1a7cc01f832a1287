// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Blocks are loaded as vectors, transposed by shuffles and stored as vectors, with no detour: those of 16 rows of the operand first,
// which make whole lines of the result.
// CHECK-LABEL: func.func @kernel_0_transpose
// CHECK-SAME:    %arg3: memref<1xi8>
// CHECK-DAG:     %[[FROM:.*]] = memref.reinterpret_cast %arg0 {{.*}} to memref<8192xf32>
// CHECK-DAG:     %[[TO:.*]] = memref.reinterpret_cast %arg1 {{.*}} to memref<8192xf32>
// CHECK:         %[[LINE:.*]] = arith.constant 16 : index
// CHECK-NEXT:    scf.for %{{.*}} = %{{.*}} to %{{.*}} step %[[LINE]] {
// CHECK:         vector.load %[[FROM]]{{.*}} : memref<8192xf32>, vector<[[V:8|16]]xf32>
// CHECK:         vector.shuffle
// CHECK:         vector.store %{{.*}}, %[[TO]]{{.*}} : memref<8192xf32>, vector<[[V]]xf32>
func.func public @main(%a: tensor<128x64xf32>) -> tensor<64x128xf32> {
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<128x64xf32>) -> tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}

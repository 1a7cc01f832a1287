// RUN: %gristmill compile --target=cuda --emit=gpu %s | filecheck %s

// The matrix lies along k: a warp takes a row, 4 neighbours a lane, and adds its lanes' sums by shuffles.
// CHECK-LABEL: gpu.func @kernel_0_dot(%arg0: memref<4096x1024xf32>
// CHECK: scf.for
// CHECK: vector.load {{.*}} : memref<4194304xf32>, vector<4xf32>
// CHECK: vector.load {{.*}} : memref<1024xf32>, vector<4xf32>
// CHECK: vector.fma
// CHECK: scf.yield
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK: memref.store {{.*}}, %arg2

// It lies along its rows' index: lanes take neighbouring columns, warps different k; they meet in workgroup memory.
// CHECK-LABEL: gpu.func @kernel_1_dot(
// CHECK-SAME: workgroup(%[[S:.*]] : memref<8x1x128xf32, #gpu.address_space<workgroup>>
// CHECK: scf.for
// CHECK: vector.load {{.*}} : memref<4194304xf32>, vector<4xf32>
// CHECK: scf.yield
// CHECK: vector.store {{.*}}, %[[S]]
// CHECK: gpu.barrier
func.func @main(%a: tensor<4096x1024xf32>, %x: tensor<1024xf32>, %y: tensor<4096xf32>)
    -> (tensor<4096xf32>, tensor<1024xf32>) {
  %0 = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0]
    : (tensor<4096x1024xf32>, tensor<1024xf32>) -> tensor<4096xf32>
  %1 = stablehlo.dot_general %y, %a, contracting_dims = [0] x [0]
    : (tensor<4096xf32>, tensor<4096x1024xf32>) -> tensor<1024xf32>
  return %0, %1 : tensor<4096xf32>, tensor<1024xf32>
}

// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// A block a row, one kernel: the maximum, the sum and the results come from registers after one read of the row. Warps
// merge by shuffles, the block through a word of workgroup memory a warp.
// CHECK-LABEL: gpu.func @kernel_0_row(
// CHECK-SAME:    workgroup({{.*}} : memref<8xf32, #gpu.address_space<workgroup>>{{.*}} : memref<8xf32, #gpu.address_space<workgroup>>
// CHECK-SAME:    known_block_size = array<i32: 256, 1, 1>, known_grid_size = array<i32: 1024, 1, 1>
// CHECK:         llvm.intr.maximum
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK:         gpu.barrier
// CHECK-COUNT-3: gpu.shuffle xor
// CHECK:         arith.addf
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK:         gpu.barrier
// CHECK-COUNT-3: gpu.shuffle xor
// CHECK:         memref.store %{{.*}}, %arg1

// PTX: .visible .entry kernel_0_row
// PTX-NOT: __local_depot
// PTX-COUNT-4: ld.global.nc.v4.b32
// PTX-NOT: ld.global
// PTX-COUNT-4: st.global.v4.b32
func.func public @main(%a: tensor<1024x4096xf32>) -> tensor<1024x4096xf32> {
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%a init: %n) applies stablehlo.maximum across dimensions = [1] : (tensor<1024x4096xf32>, tensor<f32>) -> tensor<1024xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<1024xf32>) -> tensor<1024x4096xf32>
  %d = stablehlo.subtract %a, %mb : tensor<1024x4096xf32>
  %e = stablehlo.exponential %d : tensor<1024x4096xf32>
  %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1] : (tensor<1024x4096xf32>, tensor<f32>) -> tensor<1024xf32>
  %sb = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<1024xf32>) -> tensor<1024x4096xf32>
  %r = stablehlo.divide %e, %sb : tensor<1024x4096xf32>
  return %r : tensor<1024x4096xf32>
}

// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// Eight rows a block, a warp a row: lane l takes columns 4 l to 4 l + 3, 128 + 4 l …; lanes merge by shuffles.
// CHECK-LABEL: gpu.func @kernel_0_row(%arg0: memref<4096x512xf32>
// CHECK-SAME:    known_block_size = array<i32: 256, 1, 1>, known_grid_size = array<i32: 512, 1, 1>
// CHECK:         %[[THREAD:.*]] = gpu.thread_id
// CHECK:         %[[BLOCK:.*]] = gpu.block_id
// CHECK:         arith.muli %[[BLOCK]], %c8
// CHECK:         arith.divui %[[THREAD]], %c32
// CHECK:         arith.remui %[[THREAD]], %c32
// CHECK-NOT:     gpu.barrier
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK-NOT:     gpu.shuffle

// PTX: .visible .entry kernel_0_row
// PTX-NOT: __local_depot
// PTX-COUNT-4: ld.global.nc.v4.b32
// PTX-COUNT-5: shfl.sync.bfly.b32
func.func public @main(%a: tensor<4096x512xf32>) -> tensor<4096xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<4096x512xf32>, tensor<f32>) -> tensor<4096xf32>
  return %0 : tensor<4096xf32>
}

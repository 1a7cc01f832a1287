// RUN: %gristmill compile --target=cuda --emit=gpu %s | filecheck %s
// RUN: %gristmill compile --target=cuda --emit=ptx %s | filecheck %s --check-prefix=PTX
// RUN: %gristmill compile --target=cuda:sm_75 --emit=gpu %s | filecheck %s --check-prefix=OLD

// Three stages of 64-byte rows fill the 48 KiB of workgroup memory: 128 rows of k, and k rows of 128 columns.
// CHECK-LABEL: gpu.func @kernel_0_dot(
// CHECK-SAME: workgroup(%[[S:.*]] : memref<49152xi8, #gpu.address_space<workgroup>>
// CHECK-SAME: known_block_size = array<i32: 128, 1, 1>, known_grid_size = array<i32: 256, 1, 1>
// CHECK-DAG: memref.view %[[S]]{{.*}} to memref<384x32xbf16, #gpu.address_space<workgroup>>
// CHECK-DAG: memref.view %[[S]]{{.*}} to memref<96x128xbf16, #gpu.address_space<workgroup>>

// Two steps ahead are on their way before the loop.
// CHECK: nvgpu.device_async_copy {{.*}}, 8, {{.*}} {bypassL1}
// CHECK: nvgpu.device_async_create_group
// CHECK: nvgpu.device_async_create_group
// CHECK: scf.for
// CHECK: nvgpu.device_async_wait {{.*}} {numGroups = 1 : i32}
// CHECK-NEXT: gpu.barrier
// CHECK: nvgpu.device_async_create_group
// CHECK: nvgpu.ldmatrix {{.*}} {numTiles = 4 : i32, transpose = false} : memref<384x32xbf16
// CHECK: nvgpu.ldmatrix {{.*}} {numTiles = 4 : i32, transpose = true} : memref<96x128xbf16
// CHECK: nvgpu.mma.sync({{.*}}) {mmaShape = [16, 8, 16]} : (vector<4x2xbf16>, vector<2x2xbf16>, vector<2x2xf32>)
// CHECK: scf.yield
// The sums leave through a band of 32 rows, padded by 8.
// CHECK: vector.store {{.*}} : memref<32x136xf32, #gpu.address_space<workgroup>>, vector<2xf32>

// PTX-LABEL: .entry kernel_0_dot(
// PTX-NOT: .local
// PTX: cp.async.cg.shared.global
// PTX: cp.async.commit_group
// PTX: cp.async.wait_group
// PTX: ldmatrix.sync.aligned.m8n8.x4.shared.b16
// PTX: ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16
// PTX: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
// PTX: st.global.v4

// OLD-NOT: nvgpu
// OLD: vector.fma
func.func @main(%a: tensor<2048x512xbf16>, %b: tensor<512x2048xbf16>) -> tensor<2048x2048xbf16> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<2048x512xbf16>, tensor<512x2048xbf16>) -> tensor<2048x2048xbf16>
  return %0 : tensor<2048x2048xbf16>
}

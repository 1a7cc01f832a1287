// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=kernels | filecheck %s

// Short rows of an image are run over together, by a loop that LLVM's vectoriser gets before its unroller: tasks are channels.
// CHECK-LABEL: func.func @kernel_0_loop({{.*}}: memref<4x8x7x7xf32>
// CHECK:       scf.for
// CHECK:       scf.for {{.*}} to %c49
// CHECK:       memref.load %arg{{[0-9]+}}[%{{.*}}] : memref<8xf32>
// CHECK-NOT:   scf.for
// CHECK:       } {llvm.loop_annotation = #[[ROLLED:.*]]}

// Where a factor is another in each column, rows are tasks as before.
// CHECK-LABEL: func.func @kernel_1_loop({{.*}}: memref<4x8x9x40xf32>
// CHECK:       scf.for
// CHECK:       arith.remui
// CHECK:       scf.for {{.*}} to %c40
func.func public @main(%x: tensor<4x8x7x7xf32>, %f: tensor<8xf32>, %y: tensor<4x8x9x40xf32>, %g: tensor<40xf32>)
    -> (tensor<4x8x7x7xf32>, tensor<4x8x9x40xf32>) {
  %0 = stablehlo.broadcast_in_dim %f, dims = [1] : (tensor<8xf32>) -> tensor<4x8x7x7xf32>
  %1 = stablehlo.multiply %x, %0 : tensor<4x8x7x7xf32>
  %2 = stablehlo.broadcast_in_dim %g, dims = [3] : (tensor<40xf32>) -> tensor<4x8x9x40xf32>
  %3 = stablehlo.multiply %y, %2 : tensor<4x8x9x40xf32>
  return %1, %3 : tensor<4x8x7x7xf32>, tensor<4x8x9x40xf32>
}

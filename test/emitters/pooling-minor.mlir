// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=LINE
// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=STEPS

// Maxima of 3 by 3 with stride 2: three rows are combined into a stage, NaN looked for beside them. Of the staged row, even
// and odd elements are picked and put in order once; a result of -0 is in doubt. What is not fine is reduced again, exactly.
// CHECK: func.func @kernel_0_pooling(
// CHECK: memref.view {{.*}} to memref<[[STAGE:[0-9]+]]xf32>
// CHECK-COUNT-3: vector.load {{.*}} : memref<6656xf32>, vector<[[L:[0-9]+]]xf32>
// CHECK-NOT: vector.load
// CHECK: arith.cmpf ogt, {{.*}} : vector<[[L]]xf32>
// CHECK: arith.cmpf ord, {{.*}} : vector<[[L]]xf32>
// CHECK: vector.store {{.*}} : memref<[[STAGE]]xf32>, vector<[[L]]xf32>
// CHECK: vector.load {{.*}} : memref<[[STAGE]]xf32>, vector<[[L]]xf32>
// CHECK: vector.shuffle
// CHECK: arith.cmpf ogt, {{.*}} : vector<[[L]]xf32>
// CHECK: arith.cmpi ne, {{.*}} : vector<[[L]]xi32>
// CHECK: vector.store {{.*}} : memref<1664xf32>, vector<[[L]]xf32>
// CHECK: scf.if
// CHECK: else
// CHECK: llvm.intr.maximum

// Sums along lines alone: shifted vectors of the operand, no stage.
// LINE: func.func @kernel_1_pooling({{.*}}, %arg3: memref<1xi8> {{.*}}, %arg4: memref<1xi8>
// LINE-COUNT-3: vector.load {{.*}} : memref<1664xf32>, vector<[[L:[0-9]+]]xf32>
// LINE-NOT: vector.load
// LINE: vector.store {{.*}} : memref<1664xf32>, vector<[[L]]xf32>

// 31 taps in two steps: 5 neighbours, the last vector once more; then 6 of these and a single one.
// STEPS: func.func @kernel_2_pooling(
// STEPS: memref.view {{.*}} to memref<[[STAGE:[0-9]+]]xf32>
// STEPS: vector.store {{.*}} : memref<[[STAGE]]xf32>, vector<[[L:[0-9]+]]xf32>
// STEPS-COUNT-5: vector.load {{.*}} : memref<[[STAGE]]xf32>, vector<[[L]]xf32>
// STEPS-NOT: vector.load
// STEPS: vector.store {{.*}} : memref<[[STAGE]]xf32>, vector<[[L]]xf32>
// STEPS-COUNT-5: vector.load {{.*}} : memref<[[STAGE]]xf32>, vector<[[L]]xf32>
// STEPS-NOT: vector.load
// STEPS: vector.store {{.*}} : memref<[[STAGE]]xf32>, vector<[[L]]xf32>
// STEPS-COUNT-7: vector.load {{.*}} : memref<[[STAGE]]xf32>, vector<[[L]]xf32>
// STEPS-NOT: vector.load
// STEPS: vector.store {{.*}} : memref<1664xf32>, vector<[[L]]xf32>
func.func public @main(%x: tensor<26x256xf32>) -> tensor<13x128xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %low) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 3, 3>, window_strides = array<i64: 2, 2>, padding = dense<[[0, 1], [0, 1]]> : tensor<2x2xi64>}
    : (tensor<26x256xf32>, tensor<f32>) -> tensor<13x128xf32>
  %1 = "stablehlo.reduce_window"(%0, %zero) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 1, 3>, padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>}
    : (tensor<13x128xf32>, tensor<f32>) -> tensor<13x128xf32>
  %2 = "stablehlo.reduce_window"(%1, %zero) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 1, 31>, padding = dense<[[0, 0], [15, 15]]> : tensor<2x2xi64>}
    : (tensor<13x128xf32>, tensor<f32>) -> tensor<13x128xf32>
  return %2 : tensor<13x128xf32>
}

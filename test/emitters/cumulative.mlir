// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// A line is scanned in registers: each vector combined with itself moved up by 1, 2, 4, … lanes, then with the running
// value, which its last lane moves on. The elements that fill no vector follow one at a time.
// CHECK-LABEL: func.func @kernel_0_cumulative
// CHECK:         %[[ZERO:.*]] = arith.constant -0.000000e+00 : f32
// CHECK:         %[[NEUTRAL:.*]] = vector.broadcast %[[ZERO]] : f32 to vector<[[LANES:[0-9]+]]xf32>
// CHECK:         scf.for {{.*}} -> (vector<[[LANES]]xf32>)
// CHECK:           %[[X:.*]] = vector.load {{.*}} : memref<64192xf32>, vector<[[LANES]]xf32>
// CHECK:           %[[MOVED:.*]] = vector.shuffle %[[NEUTRAL]], %[[X]]
// CHECK:           arith.addf %[[MOVED]], %[[X]] : vector<[[LANES]]xf32>
// CHECK:           vector.store {{.*}} : memref<64192xf32>, vector<[[LANES]]xf32>
// CHECK:         scf.for {{.*}} -> (f32)
// CHECK:           memref.load %arg0
func.func public @main(%x: tensor<64x1003xf32>) -> tensor<64x1003xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %zero) <{padding = dense<[[0, 0], [1002, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 1003>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %sum = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<64x1003xf32>, tensor<f32>) -> tensor<64x1003xf32>
  return %0 : tensor<64x1003xf32>
}

// RUN: %python %S/Inputs/emit.py rt %s | filecheck %s

// Temporaries share memory once they are dead; the output is written by its producer.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: memref<256xf32> {gristmill.name = "x", rt.input}
// CHECK-SAME: %[[Y:[a-z0-9]+]]: memref<256xf32> {gristmill.name = "y", rt.output}
// CHECK: %[[A:.+]] = "rt.allocate"() {alignment = 64 : i64, bytes = 3200 : i64}
// CHECK-NEXT: %[[T0:.+]] = "rt.slice"(%[[A]]) {offset = [[#O0:]] : i64} : (memref<3200xi8>) -> memref<256xf32>
// CHECK-NEXT: "rtv.launch"(%[[X]], %[[T0]]) {kernel = @k_shift
// CHECK-NEXT: %[[T1:.+]] = "rt.slice"(%[[A]]) {offset = [[#O1:]] : i64}
// CHECK-NEXT: "rtv.launch"(%[[T0]], %[[T1]]) {kernel = @k_shift
// CHECK-NEXT: %[[T2:.+]] = "rt.slice"(%[[A]]) {offset = [[#O2:]] : i64}
// CHECK-NEXT: %[[W:.+]] = "rt.slice"(%[[A]]) {{.*}} -> memref<100xi8>
// CHECK-NEXT: "rtv.launch"(%[[T1]], %[[T0]], %[[T2]], %[[W]]) {kernel = @k_work, num_arguments = 2 : i64, num_results = 1 : i64}
// CHECK-NEXT: "rtv.launch"(%[[T2]], %[[Y]]) {kernel = @k_shift
// CHECK-NEXT: return
func.func @main(%x: tensor<256xf32> {gristmill.name = "x"}) -> (tensor<256xf32> {gristmill.name = "y"}) {
  %0 = "hlov.fusion"(%x) {calls = @k_shift, kind = "loop"} : (tensor<256xf32>) -> tensor<256xf32>
  %1 = "hlov.fusion"(%0) {calls = @k_shift, kind = "loop"} : (tensor<256xf32>) -> tensor<256xf32>
  %2 = "hlov.fusion"(%1, %0) {calls = @k_work, kind = "loop"} : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  %3 = "hlov.fusion"(%2) {calls = @k_shift, kind = "loop"} : (tensor<256xf32>) -> tensor<256xf32>
  return %3 : tensor<256xf32>
}
func.func private @k_shift(tensor<256xf32>) -> tensor<256xf32>
func.func private @k_work(tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  attributes {test.workspace = array<i64: 100>}

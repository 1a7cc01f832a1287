// RUN: %gristmill-opt --pass-pipeline=split-reductions %s | filecheck %s

// The minor dimensions first; what they leave is reduced in turn.
// CHECK-LABEL: func.func @main
// CHECK: %[[A:.*]] = "hlov.reduce"(%arg0, %[[Z:.*]]) {dimensions = array<i64: 2, 3>, to_apply = @sum} : (tensor<8x3x16x8xf32>, tensor<f32>) -> tensor<8x3xf32>
// CHECK: %[[B:.*]] = "hlov.reduce"(%[[A]], %[[Z]]) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32>
// CHECK: return %[[B]]
func.func @main(%x: tensor<8x3x16x8xf32>) -> tensor<3xf32> {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0, 2, 3>, to_apply = @sum} : (tensor<8x3x16x8xf32>, tensor<f32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// The last group need not be minor, and there may be more than two.
// CHECK-LABEL: func.func @three
// CHECK: "hlov.reduce"({{.*}}) {dimensions = array<i64: 4>, {{.*}} -> tensor<2x3x128x5x7xf32>
// CHECK: "hlov.reduce"({{.*}}) {dimensions = array<i64: 2>, {{.*}} -> tensor<2x3x5x7xf32>
// CHECK: "hlov.reduce"({{.*}}) {dimensions = array<i64: 0>, {{.*}} -> tensor<3x5x7xf32>
func.func @three(%x: tensor<2x3x128x5x128x7xf32>) -> tensor<3x5x7xf32> {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0, 2, 4>, to_apply = @sum} : (tensor<2x3x128x5x128x7xf32>, tensor<f32>) -> tensor<3x5x7xf32>
  return %0 : tensor<3x5x7xf32>
}

// 16 elements of one dimension are enough, of two they are not.
// CHECK-LABEL: func.func @few
// CHECK: "hlov.reduce"(%arg0, {{.*}}) {dimensions = array<i64: 2>, {{.*}} -> tensor<4x6xf32>
// CHECK: "hlov.reduce"(%{{.*}}) {dimensions = array<i64: 0>, {{.*}} -> tensor<6xf32>
// CHECK: "hlov.reduce"(%arg1, {{.*}}) {dimensions = array<i64: 0, 2, 3>,
func.func @few(%x: tensor<4x6x16xf32>, %y: tensor<4x6x4x4xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0, 2>, to_apply = @sum} : (tensor<4x6x16xf32>, tensor<f32>) -> tensor<6xf32>
  %1 = "hlov.reduce"(%y, %z) {dimensions = array<i64: 0, 2, 3>, to_apply = @sum} : (tensor<4x6x4x4xf32>, tensor<f32>) -> tensor<6xf32>
  return %0, %1 : tensor<6xf32>, tensor<6xf32>
}

// A short last group comes last: of the channels of a group little would be added, of the pixels much.
// CHECK-LABEL: func.func @groups
// CHECK: %[[P:.*]] = "hlov.reduce"(%arg0, %[[Z:.*]]) {dimensions = array<i64: 1, 2>, to_apply = @sum} : (tensor<2x16x8x8x4xf32>, tensor<f32>) -> tensor<2x8x4xf32>
// CHECK: "hlov.reduce"(%[[P]], %[[Z]]) {dimensions = array<i64: 2>, to_apply = @sum} : (tensor<2x8x4xf32>, tensor<f32>) -> tensor<2x8xf32>
func.func @groups(%x: tensor<2x16x8x8x4xf32>) -> tensor<2x8xf32> {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 1, 2, 4>, to_apply = @sum} : (tensor<2x16x8x8x4xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// Neighbours stay together; a few elements are not worth it; 5 would be added twice; the body is not one operation.
// CHECK-LABEL: func.func @left
// CHECK-COUNT-4: "hlov.reduce"
// CHECK-NOT: "hlov.reduce"
func.func @left(%x: tensor<4x6x128xf32>, %y: tensor<127x6x4xf32>) -> (tensor<4xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %five = "hlo.constant"() {value = dense<5.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 1, 2>, to_apply = @sum} : (tensor<4x6x128xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = "hlov.reduce"(%y, %z) {dimensions = array<i64: 0, 2>, to_apply = @sum} : (tensor<127x6x4xf32>, tensor<f32>) -> tensor<6xf32>
  %2 = "hlov.reduce"(%x, %five) {dimensions = array<i64: 0, 2>, to_apply = @sum} : (tensor<4x6x128xf32>, tensor<f32>) -> tensor<6xf32>
  %3 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0, 2>, to_apply = @difference} : (tensor<4x6x128xf32>, tensor<f32>) -> tensor<6xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>
}

// A sum of halves would be rounded in between; integers are not.
// CHECK-LABEL: func.func @narrow
// CHECK: "hlov.reduce"(%arg0, {{.*}}) {dimensions = array<i64: 0, 2>,
// CHECK: "hlov.reduce"(%arg1, {{.*}}) {dimensions = array<i64: 2>,
func.func @narrow(%x: tensor<4x6x128xf16>, %y: tensor<4x6x128xi8>) -> (tensor<6xf16>, tensor<6xi8>) {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f16>} : () -> tensor<f16>
  %n = "hlo.constant"() {value = dense<-128> : tensor<i8>} : () -> tensor<i8>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0, 2>, to_apply = @half} : (tensor<4x6x128xf16>, tensor<f16>) -> tensor<6xf16>
  %1 = "hlov.reduce"(%y, %n) {dimensions = array<i64: 0, 2>, to_apply = @largest} : (tensor<4x6x128xi8>, tensor<i8>) -> tensor<6xi8>
  return %0, %1 : tensor<6xf16>, tensor<6xi8>
}

func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

func.func private @difference(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.subtract"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

func.func private @half(%a: tensor<f16>, %b: tensor<f16>) -> tensor<f16> {
  %0 = "hlo.add"(%a, %b) : (tensor<f16>, tensor<f16>) -> tensor<f16>
  return %0 : tensor<f16>
}

func.func private @largest(%a: tensor<i8>, %b: tensor<i8>) -> tensor<i8> {
  %0 = "hlo.maximum"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i8>
  return %0 : tensor<i8>
}

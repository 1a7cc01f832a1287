// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s

// A task transposes its panel of a right operand contiguous in k in registers, sixteen columns at a time, widened to
// f32, into scratch; sums stay in f32 and are rounded once, where they are stored.
// CHECK-LABEL: func.func @{{.*}}_compute(
// CHECK: memref.view %arg4
// CHECK: scf.for
// CHECK: vector.load {{.*}} vector<16xbf16>
// CHECK: arith.extf {{.*}} : vector<16xbf16> to vector<16xf32>
// CHECK: vector.shuffle {{.*}} : vector<16xf32>, vector<16xf32>
// CHECK: vector.store {{.*}} : memref<6144xf32>, vector<16xf32>
// CHECK: vector.fma {{.*}} : vector<16xf32>
// CHECK: arith.truncf {{.*}} : f32 to bf16
// CHECK: memref.store
func.func @main(%a: tensor<24x128xbf16>, %b: tensor<96x128xbf16>) -> tensor<24x96xbf16> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1]
    : (tensor<24x128xbf16>, tensor<96x128xbf16>) -> tensor<24x96xbf16>
  return %0 : tensor<24x96xbf16>
}

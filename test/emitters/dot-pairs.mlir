// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=asm %s | filecheck %s --check-prefix=ASM

// Integers of 8 bits are widened to 16 and packed in pairs of k; a product of pairs is one instruction.
// CHECK-LABEL: func.func @{{.*}}_compute(
// CHECK: arith.extsi {{.*}} : vector<16xi8> to vector<16xi16>
// CHECK: vector.interleave {{.*}} : vector<16xi16> -> vector<32xi16>
// CHECK: arith.muli {{.*}} : vector<32xi32>
// CHECK: vector.shuffle
// CHECK: vector.shuffle
// CHECK: arith.addi {{.*}} : vector<16xi32>
// CHECK-NEXT: arith.addi {{.*}} : vector<16xi32>

// ASM: vpmaddwd {{.*}}zmm
func.func @main(%a: tensor<24x64xi8>, %b: tensor<64x64xi8>) -> tensor<24x64xi32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<24x64xi8>, tensor<64x64xi8>) -> tensor<24x64xi32>
  return %0 : tensor<24x64xi32>
}

// What instructions are made of: functions of lanes, chosen by the parts of a mnemonic.
#pragma once

#include <utility>

#include "machine.h"

namespace emulator {

// Parts of the instruction set. False where the mnemonic is of another.
bool decode_arithmetic(const Mnemonic& mnemonic, Instruction& instruction);
bool decode_conversion(const Mnemonic& mnemonic, Instruction& instruction);
bool decode_memory(const Mnemonic& mnemonic, Instruction& instruction);
bool decode_warp(const Mnemonic& mnemonic, Instruction& instruction);

// Whether operand i has lanes of such values.
template <class T>
void require_lanes(const Instruction& instruction, size_t i) {
  const Operand& operand = instruction.operands.at(i);
  const bool lanes = operand.bank == Operand::Bank::kRegisters || operand.bank == Operand::Bank::kConstants;
  if (!lanes || operand.lane_bytes != (sizeof(T) > 4 ? 8 : 4)) throw Fault("an operand of another kind");
}

// result = function(sources), lane by lane.
template <class Result, class... Sources, class Function>
bool lanewise(Instruction& instruction, Function) {
  if (instruction.operands.size() != 1 + sizeof...(Sources)) throw Fault("so many operands");
  size_t i = 0;
  require_lanes<Result>(instruction, i++);
  (require_lanes<Sources>(instruction, i++), ...);
  instruction.run = [](Warp& warp, const Instruction& instruction, uint32_t lanes) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      uint8_t* const result = warp.at(instruction[0]);
      const uint8_t* const sources[] = {warp.at(instruction[1 + I])...};
      for_lanes(lanes, [&](int lane) {
        put<Result>(result, lane, static_cast<Result>(Function{}(get<Sources>(sources[I], lane)...)));
      });
    }
    (std::index_sequence_for<Sources...>());
  };
  return true;
}

template <class T>
struct Tag {
  using Type = T;
};

// work(Tag<T>()) for the type of that name.
template <class Work>
bool with_integer(const std::string& type, const Work& work) {
  if (type == "s16") return work(Tag<int16_t>());
  if (type == "u16" || type == "b16") return work(Tag<uint16_t>());
  if (type == "s32") return work(Tag<int32_t>());
  if (type == "u32" || type == "b32") return work(Tag<uint32_t>());
  if (type == "s64") return work(Tag<int64_t>());
  if (type == "u64" || type == "b64") return work(Tag<uint64_t>());
  return false;
}
template <class Work>
bool with_float(const std::string& type, const Work& work) {
  if (type == "f32") return work(Tag<float>());
  if (type == "f64") return work(Tag<double>());
  return false;
}
template <class Work>
bool with_number(const std::string& type, const Work& work) {
  return with_integer(type, work) || with_float(type, work);
}

// What g++ calls it.
#if defined(__aarch64__)
using Half = __fp16;
#else
using Half = _Float16;
#endif

// float16 and bfloat16 as their bits.
inline float from_half(uint16_t bits) { return static_cast<float>(std::bit_cast<Half>(bits)); }
inline uint16_t to_half(float value) {
  return value == value ? std::bit_cast<uint16_t>(static_cast<Half>(value)) : 0x7fff;
}
float from_bfloat(uint16_t bits);
uint16_t to_bfloat(float value);

}  // namespace emulator

#include <string>

#include "codecs/codec.h"
#include "kvasir/codec.h"
#include "kvasir/error.h"

namespace kvasir {

#define CODEC(name) extern const Codec name##_codec;
#include "codecs/codecs.def"
#undef CODEC

namespace {

constexpr const Codec* kCodecs[] = {
#define CODEC(name) &name##_codec,
#include "codecs/codecs.def"
#undef CODEC
};
constexpr int kCodecCount = sizeof kCodecs / sizeof *kCodecs;

const CodecOption* find_option(const Codec& codec, const std::string& name) {
  for (const CodecOption* option = codec.options; option->name; ++option) {
    if (name == option->name) return option;
  }
  return nullptr;
}

const CodecOption& option_at(int codec, int option) {
  if (option < 0 || option >= codec_option_count(codec)) {
    throw Error(ErrorCode::kInvalidArgument, "codec " + std::string(codec_name(codec)) + " has " +
                                                 std::to_string(codec_option_count(codec)) + " options, asked for " +
                                                 std::to_string(option));
  }
  return codec_at(codec).options[option];
}

std::string widths_text(const Codec& codec) {
  std::string text;
  for (int bits = 1; bits <= 16; ++bits) {
    if (codec.widths >> bits & 1) text += (text.empty() ? "" : ", ") + std::to_string(bits);
  }
  return text;
}

}  // namespace

const Codec& codec_at(int index) {
  if (index < 0 || index >= kCodecCount) {
    throw Error(ErrorCode::kInvalidArgument, "codec " + std::to_string(index) + " of " + std::to_string(kCodecCount));
  }
  return *kCodecs[index];
}

int codec_index(const std::string& name) {
  std::string names;
  for (int i = 0; i < kCodecCount; ++i) {
    if (name == kCodecs[i]->name) return i;
    names += (i ? ", " : "") + std::string(kCodecs[i]->name);
  }
  throw Error(ErrorCode::kInvalidArgument, "no codec '" + name + "'; there are " + names);
}

PageFormat configure_codec(int index, Side side, int bits, int head_dim, const CodecOptions& options) {
  const Codec& codec = codec_at(index);
  if (!codec_has_bits(index, bits)) {
    throw Error(ErrorCode::kInvalidArgument, "codec " + std::string(codec.name) + " has no " + std::to_string(bits) +
                                                 "-bit form; it has " + widths_text(codec));
  }
  for (const auto& [name, value] : options) {
    if (!find_option(codec, name)) {
      throw Error(ErrorCode::kInvalidArgument, "codec " + std::string(codec.name) + " has no option '" + name + "'");
    }
  }
  if (!codec_has_side(index, side)) {
    throw Error(ErrorCode::kInvalidArgument,
                "codec " + std::string(codec.name) + " does not store " + (side == Side::kKeys ? "keys" : "values"));
  }
  return codec.configure(side, bits, head_dim, options);
}

int codec_count() { return kCodecCount; }
const char* codec_name(int codec) { return codec_at(codec).name; }
const char* codec_summary(int codec) { return codec_at(codec).summary; }

bool codec_has_bits(int codec, int bits) { return bits >= 1 && bits <= 31 && (codec_at(codec).widths >> bits & 1); }

bool codec_has_side(int codec, Side side) {
  return (side == Side::kKeys || side == Side::kValues) && (codec_at(codec).sides >> static_cast<int>(side) & 1);
}

bool codec_is_trained(int codec) { return codec_at(codec).trained; }

int codec_option_count(int codec) {
  int count = 0;
  while (codec_at(codec).options[count].name) ++count;
  return count;
}

const char* codec_option_name(int codec, int option) { return option_at(codec, option).name; }
const char* codec_option_summary(int codec, int option) { return option_at(codec, option).summary; }

}  // namespace kvasir

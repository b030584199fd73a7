// The codecs of this build, as a table to walk: names, widths, options.
//
// A codec says how the keys or the values of a page are stored. Tests, benchmarks and bindings read this table,
// so that a new codec is covered by all of them the day it is added. docs/format.md describes each page layout.
#pragma once

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir {

// Number of codecs. Functions below take 0..codec_count()-1 and throw kInvalidArgument outside.
int codec_count();

const char* codec_name(int codec);     // "f16", "uniform", ...
const char* codec_summary(int codec);  // one sentence

// Whether the codec stores elements at this width.
bool codec_has_bits(int codec, int bits);
// Whether the codec stores this side; most store both.
bool codec_has_side(int codec, Side side);

// Whether the codec needs codebooks: CacheConfig::set_key_codebook and set_value_codebook. Codec "spectral" can do
// without its basis.
bool codec_is_trained(int codec);

// Options of the codec: 0..codec_option_count(codec)-1.
int codec_option_count(int codec);
const char* codec_option_name(int codec, int option);
const char* codec_option_summary(int codec, int option);

}  // namespace kvasir

// The registry: every row complete, every codec and option known to the reference, every width refused or stored.
#include <set>
#include <string>

#include "kvasir/error.h"
#include "support/doctest.h"
#include "support/formats.h"

namespace {

// What a codec needs for the sides that it stores, and for parts that vary in size.
bool complete(int codec, const kvasir::CodecKernels& kernels) {
  const bool keys = kvasir::codec_has_side(codec, kvasir::Side::kKeys);
  const bool values = kvasir::codec_has_side(codec, kvasir::Side::kValues);
  bool varies = false;
  for (const support::Format& format : support::all_formats(32))
    varies |= format.codec == codec && format.page.varies();
  return kernels.encode != nullptr && kernels.decode != nullptr && (kernels.key_scores != nullptr) == keys &&
         (kernels.value_sum != nullptr) == values && (kernels.lay_out != nullptr) == varies;
}

}  // namespace

TEST_CASE("registry: each codec has a reference that knows its options") {
  std::set<std::string> names;
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    const std::string name = kvasir::codec_name(codec);
    CHECK_MESSAGE(names.insert(name).second, name, " is listed twice");
    CHECK(kvasir::codec_index(name) == codec);
    CHECK(!std::string(kvasir::codec_summary(codec)).empty());
    const auto& known = reference::reference_codec(name).option_names;
    std::set<std::string> options;
    for (int option = 0; option < kvasir::codec_option_count(codec); ++option) {
      options.insert(kvasir::codec_option_name(codec, option));
      CHECK(!std::string(kvasir::codec_option_summary(codec, option)).empty());
    }
    CHECK_MESSAGE(options == std::set<std::string>(known.begin(), known.end()), "the reference of ", name,
                  " must vary every option, and no other");
  }
  CHECK(names.size() == reference::reference_codecs().size());
}

TEST_CASE("registry: indices outside the table are refused") {
  for (const int codec : {-1, kvasir::codec_count(), INT32_MAX}) {
    CHECK_THROWS_AS(kvasir::codec_name(codec), kvasir::Error);
    CHECK_THROWS_AS(kvasir::codec_summary(codec), kvasir::Error);
    CHECK_THROWS_AS(kvasir::codec_has_bits(codec, 2), kvasir::Error);
    CHECK_THROWS_AS(kvasir::codec_option_count(codec), kvasir::Error);
    CHECK_THROWS_AS(kvasir::codec_option_name(codec, 0), kvasir::Error);
  }
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    for (const int option : {-1, kvasir::codec_option_count(codec)}) {
      CHECK_THROWS_AS(kvasir::codec_option_name(codec, option), kvasir::Error);
      CHECK_THROWS_AS(kvasir::codec_option_summary(codec, option), kvasir::Error);
    }
  }
  CHECK_THROWS_AS(kvasir::codec_index("no such codec"), kvasir::Error);
}

TEST_CASE("registry: page parts are multiples of 64 bytes, as long as the format says") {
  for (const int head_dim : support::kHeadDims) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      CHECK_MESSAGE(format.page.page_bytes % 64 == 0, format.text);
      CHECK_MESSAGE((format.page.page_bytes == 0) == format.page.varies(), format.text);
      CHECK(format.page.bits == format.shape.bits);
      CHECK(format.page.head_dim == head_dim);
      if (format.shape.group != 0) CHECK(format.page.group == format.shape.group);
      if (format.shape.group != 0) CHECK(static_cast<int>(format.page.axis) == format.shape.axis);
    }
  }
}

TEST_CASE("registry: codecs with a side table have all that goes with it") {
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    const kvasir::Codec& row = kvasir::codec_at(codec);
    const bool table = reference::reference_codec(row.name).label_bytes > 0;
    CHECK((row.grow != nullptr) == table);
    CHECK((row.flatten != nullptr) == table);
    CHECK((row.restore != nullptr) == table);
    CHECK((row.labelled != nullptr) == table);
    CHECK((row.attach != nullptr) == reference::reference_codec(row.name).trained);
    for (int backend = 0; backend < kvasir::backend_list_size(); ++backend) {
      const kvasir::CodecKernels kernels = kvasir::resolve_codec(backend, codec).kernels;
      CHECK((kernels.begin_keys != nullptr) == (table || (row.attach != nullptr && !row.before_rope)));
      CHECK((kernels.end_values != nullptr) == (table || row.attach != nullptr));
    }
  }
}

TEST_CASE("registry: every width from -1 to 40 is either stored or refused") {
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    int stored = 0;
    for (int bits = -1; bits <= 40; ++bits) {
      if (kvasir::codec_has_bits(codec, bits)) {
        CHECK(kvasir::configure_codec(codec, kvasir::Side::kKeys, bits, 64, {}).bits == bits);
        ++stored;
      } else {
        CHECK_THROWS_AS(kvasir::configure_codec(codec, kvasir::Side::kKeys, bits, 64, {}), kvasir::Error);
      }
    }
    CHECK(stored > 0);
  }
}

TEST_CASE("registry: the worked example of docs/format.md") {
  // Values, d = 32, 2 bits, axis TOKEN, G = 32: the code of token 21, channel 18 is in byte 1097, bits 2 and 3.
  const support::Format format = support::make_format(kvasir::codec_index("uniform"), kvasir::Side::kValues, 2, 32,
                                                      {{"axis", 1.0}, {"group", 32.0}});
  REQUIRE(format.page.page_bytes == 1536);
  std::vector<float> rows(128 * 32, 0.0f);
  for (int t = 0; t < 128; ++t) rows[t * 32 + 31] = 3.0f;  // lo = 0, range = 3, step = 1
  alignas(64) uint8_t before[1536], after[1536];
  const auto& kernels = *support::scalar_backend().codecs[format.codec];
  kernels.encode(format.page, rows.data(), before);
  rows[21 * 32 + 18] = 2.0f;
  kernels.encode(format.page, rows.data(), after);
  for (int i = 0; i < 1536; ++i) {
    if (i != 1097) CHECK(before[i] == after[i]);
  }
  CHECK((before[1097] & 0x0c) == 0);
  CHECK((after[1097] & 0x0c) == 2 << 2);
}

TEST_CASE("backends: listed best first, scalar last and complete, the default available") {
  const int count = kvasir::backend_list_size();
  REQUIRE(count >= 1);
  CHECK(std::string(kvasir::backend_at(count - 1).name) == "scalar");
  CHECK(kvasir::backend_at(count - 1).available());
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    const kvasir::CodecKernels* kernels = support::scalar_backend().codecs[codec];
    CHECK_MESSAGE((kernels != nullptr && complete(codec, *kernels)), kvasir::codec_name(codec));
    for (int backend = 0; backend < count; ++backend) {
      // However sparse a backend is, what a cache gets is complete.
      CHECK(complete(codec, kvasir::resolve_codec(backend, codec).kernels));
    }
  }
  CHECK(kvasir::backend_at(kvasir::backend_index("auto")).available());
}

TEST_CASE("backends: a cache gets the verbs of its backend, and knows where it does not") {
  for (int index = 0; index < kvasir::backend_list_size(); ++index) {
    const kvasir::Backend& backend = kvasir::backend_at(index);
    if (!backend.available()) continue;
    CHECK(kvasir::backend_index(backend.name) == index);
    for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
      const kvasir::CodecKernels* own = backend.codecs[codec];
      const kvasir::ResolvedCodec resolved = kvasir::resolve_codec(index, codec);
      const bool own_scores = own != nullptr && own->key_scores != nullptr;
      const bool own_sums =
          own != nullptr && (own->value_sum != nullptr || !kvasir::codec_has_side(codec, kvasir::Side::kValues));
      if (own_scores) CHECK((resolved.kernels.key_scores == own->key_scores));
      if (own_sums) CHECK((resolved.kernels.value_sum == own->value_sum));
      CHECK((own_scores || kvasir::codec_has_side(codec, kvasir::Side::kKeys)));
      CHECK_MESSAGE(resolved.fallback == !(own_scores && own_sums), backend.name, " ", kvasir::codec_name(codec));
    }
  }
}

TEST_CASE("backends: which verbs were tested here") {
  // A record in the log of what this machine could test; a backend without a verb leaves it to the next lower one.
  for (const kvasir::Backend* backend : support::available_backends()) {
    for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
      const kvasir::CodecKernels* k = backend->codecs[codec];
      const bool own[] = {k && k->encode, k && k->decode, k && k->key_scores, k && k->value_sum};
      MESSAGE(backend->name, " ", kvasir::codec_name(codec), ": encode ", own[0], ", decode ", own[1], ", key_scores ",
              own[2], ", value_sum ", own[3]);
    }
  }
}

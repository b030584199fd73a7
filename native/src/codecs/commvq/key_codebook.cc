#include "codecs/commvq/key_codebook.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/checked.h"
#include "base/checks.h"
#include "base/half.h"
#include "base/rope.h"
#include "base/scratch.h"
#include "base/thread_pool.h"

namespace kvasir {

using commvq::Stage;

namespace {

// The tokens of one page and kv head.
struct Part {
  int head;
  int64_t first;  // token
  int count;
  size_t code_offset;  // of its codes
};

// Room for the planar, normalised rows of one.
float* part_rows(const commvq::KeyShape& shape) {
  return thread_scratch<Part, float>(static_cast<size_t>(kPageTokens) * shape.head_dim);
}

// verb(part) for all of them, on the threads of the library.
template <class Verb>
void for_each_part(const commvq::KeyShape& shape, int64_t tokens, const Verb& verb) {
  const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  const int64_t tasks = checked_multiply(pages, shape.kv_heads, "pages of heads");
  require_range("pages of heads", tasks, 1, std::numeric_limits<int>::max());
  ThreadPool::current().run(static_cast<int>(tasks), [&](int task) {
    const int64_t first = int64_t{task / shape.kv_heads} * kPageTokens;
    const int count = static_cast<int>(std::min<int64_t>(kPageTokens, tokens - first));
    verb(Part{task % shape.kv_heads, first, count, static_cast<size_t>(task) * shape.page().head_bytes()});
  });
}

}  // namespace

KeyCodebook::Impl::Impl(const commvq::KeyShape& shape, const float* tables, const CodebookKernels& kernels)
    : kernels(kernels), shape(shape) {
  shape.check();
  require_pointer("tables", tables);
  const size_t size = shape.table_floats();
  std::vector<float> rounded(size);
  for (int i = 0; i < shape.kv_heads * shape.stages; ++i, tables += size) {
    for (size_t j = 0; j < size; ++j) {
      if (!(std::fabs(tables[j]) <= 65504.0f)) {
        throw Error(ErrorCode::kNotFinite, "tables: " + float_text(tables[j]) + " in kv head " +
                                               std::to_string(i / shape.stages) + ", stage " +
                                               std::to_string(i % shape.stages));
      }
      rounded[j] = half_to_float(float_to_half(tables[j]));
    }
    stages.emplace_back(shape.entries, shape.head_dim, rounded.data());
  }
}

void KeyCodebook::Impl::encode_head(int kv_head, const float* given, const float* divisors, int tokens, int refinements,
                                    uint8_t* codes) const {
  struct Products;
  const int entries = shape.entries, bits = shape.index_bits(), d = shape.head_dim;
  // What the codes found so far leave over.
  float* const rows = part_rows(shape);
  float* const products = thread_scratch<Products, float>(static_cast<size_t>(kPageTokens) * 2 * entries);
  float scores[kPageTokens];
  // [stages][kPageTokens]
  std::vector<int> found(static_cast<size_t>(shape.stages) * kPageTokens, 0);
  const auto row = [&](int t) { return rows + static_cast<size_t>(t) * d; };
  for (int t = 0; t < tokens; ++t) {
    to_planar(shape.pairs, d, given + t * shape.width() + static_cast<size_t>(kv_head) * d, row(t));
    for (int c = 0; c < d; ++c) row(t)[c] /= divisors[t];
  }
  for (int r = 0; r < shape.stages; ++r) {
    int* const mine = found.data() + static_cast<size_t>(r) * kPageTokens;
    stage(kv_head, r).find(kernels, rows, d, tokens, products, mine, scores);
    for (int t = 0; t < tokens; ++t) stage(kv_head, r).add(mine[t], -1.0f, row(t));
  }
  bool changed = shape.stages > 1;
  for (int pass = 0; pass < refinements && changed; ++pass) {
    changed = false;
    for (int r = 0; r < shape.stages; ++r) {
      const Stage& table = stage(kv_head, r);
      int* const mine = found.data() + static_cast<size_t>(r) * kPageTokens;
      int better[kPageTokens];
      for (int t = 0; t < tokens; ++t) table.add(mine[t], 1.0f, row(t));
      table.find(kernels, rows, d, tokens, products, better, scores);
      for (int t = 0; t < tokens; ++t) {
        const float* product = products + static_cast<size_t>(t) * 2 * entries;
        const int a = mine[t] / entries, b = mine[t] % entries;
        // The score of the code in force, rounded as the search rounds: only what is less counts as better.
        const float old = (table.cross()[mine[t]] + product[entries + b]) + product[a];
        if (scores[t] < old) {
          mine[t] = better[t];
          changed = true;
        }
        table.add(mine[t], -1.0f, row(t));
      }
    }
  }
  for (int r = 0; r < shape.stages; ++r) {
    int packed[kPageTokens] = {};
    for (int t = 0; t < tokens; ++t) {
      const int code = found[static_cast<size_t>(r) * kPageTokens + t];
      packed[t] = code / entries | (code % entries) << bits;
    }
    commvq::pack_codes(packed, 2 * bits, codes + r * shape.page().stage_bytes());
  }
}

void KeyCodebook::Impl::decode_head(int kv_head, const uint8_t* codes, const uint16_t* norms, int tokens,
                                    float* out) const {
  const int bits = shape.index_bits(), d = shape.head_dim;
  float* const rows = part_rows(shape);
  std::fill(rows, rows + static_cast<size_t>(tokens) * d, 0.0f);
  for (int r = 0; r < shape.stages; ++r) {
    int packed[kPageTokens];
    commvq::unpack_codes(codes + r * shape.page().stage_bytes(), 2 * bits, packed);
    for (int t = 0; t < tokens; ++t) {
      const int a = packed[t] & (shape.entries - 1), b = packed[t] >> bits;
      stage(kv_head, r).add(a * shape.entries + b, 1.0f, rows + static_cast<size_t>(t) * d);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    float* const row = rows + static_cast<size_t>(t) * d;
    const float norm = half_to_float(norms[t]);
    for (int c = 0; c < d; ++c) row[c] *= norm;
    from_planar(shape.pairs, d, row, out + t * shape.width() + static_cast<size_t>(kv_head) * d);
  }
}

KeyCodebook::KeyCodebook() = default;
KeyCodebook::~KeyCodebook() = default;
void KeyCodebook::destroy(KeyCodebook* codebook) { delete codebook; }

KeyCodebook* KeyCodebook::share() const {
  auto* codebook = new KeyCodebook();
  codebook->impl_ = impl_;
  return codebook;
}

int KeyCodebook::kv_heads() const { return impl_->shape.kv_heads; }
int KeyCodebook::head_dim() const { return impl_->shape.head_dim; }
RopePairs KeyCodebook::pairs() const { return impl_->shape.pairs; }
int KeyCodebook::stages() const { return impl_->shape.stages; }
int KeyCodebook::entries() const { return impl_->shape.entries; }

int64_t KeyCodebook::code_bytes(int64_t tokens) const {
  require_range("tokens", tokens, 0, std::numeric_limits<int64_t>::max() / (int64_t{1} << 32));
  return (tokens + kPageTokens - 1) / kPageTokens * impl_->shape.kv_heads *
         static_cast<int64_t>(impl_->shape.page().head_bytes());
}

void KeyCodebook::read_tables(float* out) const {
  require_pointer("out", out);
  for (const Stage& stage : impl_->stages) {
    out = std::copy(stage.vector(0), stage.vector(0) + impl_->shape.table_floats(), out);
  }
}

void KeyCodebook::encode(const float* rows, int64_t tokens, int refinements, uint8_t* codes, uint16_t* norms) const {
  require_pointer("rows", rows);
  require_pointer("codes", codes);
  require_pointer("norms", norms);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  require_range("refinements", refinements, 0, 100);
  const commvq::KeyShape& shape = impl_->shape;
  const size_t width = shape.width();
  require_rows(rows, tokens, static_cast<int64_t>(width));
  const int pages = static_cast<int>((tokens + kPageTokens - 1) / kPageTokens);
  std::vector<float> divisors(static_cast<size_t>(tokens));
  ThreadPool::current().run(pages, [&](int page) {
    for (int64_t t = int64_t{page} * kPageTokens; t < std::min(tokens, (page + int64_t{1}) * kPageTokens); ++t) {
      norms[t] = commvq::token_norm(rows + t * width, width, &divisors[static_cast<size_t>(t)]);
    }
  });
  for_each_part(shape, tokens, [&](const Part& part) {
    impl_->encode_head(part.head, rows + part.first * width, divisors.data() + part.first, part.count, refinements,
                       codes + part.code_offset);
  });
}

void KeyCodebook::decode(const uint8_t* codes, const uint16_t* norms, int64_t tokens, float* rows) const {
  require_pointer("codes", codes);
  require_pointer("norms", norms);
  require_pointer("rows", rows);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  const commvq::KeyShape& shape = impl_->shape;
  for (int64_t t = 0; t < tokens; ++t) {
    if (norms[t] >= 0x7C00u) {
      throw Error(ErrorCode::kNotFinite, "the norm of token " + std::to_string(t) + " is negative or not finite");
    }
  }
  for_each_part(shape, tokens, [&](const Part& part) {
    impl_->decode_head(part.head, codes + part.code_offset, norms + part.first, part.count,
                       rows + part.first * shape.width());
  });
}

}  // namespace kvasir

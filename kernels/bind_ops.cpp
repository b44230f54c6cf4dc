// octavo._kernels.ops: single kernels of a chosen instruction set on NumPy arrays, for tests and benchmarks. Serving
// never comes here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.h"
#include "octavo.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Floats = In<float, 1>;
using Ints = In<int32_t, 1>;

const Kernels& table(const std::string& isa) {
  const Kernels& kernels = select_kernels(isa.c_str());
  if (!isa.empty() && isa != kernels.isa)
    throw std::invalid_argument("This processor does not run " + isa + "; its best is " + kernels.isa + ".");
  return kernels;
}

template <class T, int N>
Out<T, N> make(const size_t (&shape)[N]) {
  size_t size = 1;
  for (size_t n : shape) size *= n;
  T* data = new T[size]();
  return Out<T, N>(data, N, shape, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

// [blocks, layers, bytes of K and V of all heads of 16 tokens]
using Memory = nb::ndarray<uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

KvCache cache_of(const Memory& memory, int kv_heads, int head_dim, const std::string& kv) {
  KvCache cache;
  cache.base = memory.data();
  cache.layers = static_cast<int32_t>(memory.shape(1));
  cache.layer_bytes = static_cast<int64_t>(memory.shape(2));
  cache.block_bytes = cache.layers * cache.layer_bytes;
  cache.kv_heads = kv_heads;
  cache.head_dim = head_dim;
  cache.type = kv_type_of(kv.c_str());
  require(kv_heads > 0 && head_dim > 0 && cache.layer_bytes == 2 * kv_heads * head_bytes(cache),
          "The last axis of the KV memory is not as long as K and V of 16 tokens are.");
  return cache;
}

Out<float, 2> rms_norm(In<float, 2> x, Floats weight, float eps, float offset, const std::string& isa) {
  const size_t rows = x.shape(0), cols = x.shape(1);
  require(cols > 0 && weight.shape(0) == cols, "weight and x differ in their last axis.");
  auto out = make<float, 2>({rows, cols});
  const Kernels& k = table(isa);
  for (size_t r = 0; r < rows; ++r)
    k.rms_norm(x.data() + r * cols, weight.data(), eps, offset, static_cast<int32_t>(cols), out.data() + r * cols);
  return out;
}

Out<float, 3> rope(In<float, 3> x, In<float, 2> cos, In<float, 2> sin, bool interleaved, const std::string& isa) {
  const size_t tokens = x.shape(0), heads = x.shape(1), dim = x.shape(2), half = cos.shape(1);
  require(cos.shape(0) == tokens && sin.shape(0) == tokens && sin.shape(1) == half && 2 * half <= dim,
          "cos and sin must be [tokens, at most head_dim / 2].");
  auto out = make<float, 3>({tokens, heads, dim});
  std::copy(x.data(), x.data() + tokens * heads * dim, out.data());
  const Kernels& k = table(isa);
  for (size_t t = 0; t < tokens; ++t)
    k.rope(out.data() + t * heads * dim, static_cast<int32_t>(heads), static_cast<int32_t>(dim),
           static_cast<int32_t>(2 * half), interleaved, cos.data() + t * half, sin.data() + t * half);
  return out;
}

void kv_write(Memory memory, int layer, Ints block_table, int position, In<float, 3> keys, In<float, 3> values,
              const std::string& kv, const std::string& isa) {
  const size_t tokens = keys.shape(0), heads = keys.shape(1), dim = keys.shape(2);
  require(values.shape(0) == tokens && values.shape(1) == heads && values.shape(2) == dim, "K and V differ in shape.");
  const KvCache cache = cache_of(memory, static_cast<int>(heads), static_cast<int>(dim), kv);
  require(layer >= 0 && layer < cache.layers && position >= 0, "layer or position is out of range.");
  const Kernels& k = table(isa);
  for (size_t t = 0; t < tokens; ++t) {
    const size_t at = static_cast<size_t>(position) + t, logical = at / kBlockTokens;
    require(logical < block_table.shape(0), "The block table is too short.");
    const int32_t block = block_table.data()[logical];
    require(block >= 0 && static_cast<size_t>(block) < memory.shape(0), "A block of the table does not exist.");
    k.kv_write(cache, layer, block, static_cast<int32_t>(at % kBlockTokens), keys.data() + t * heads * dim,
               values.data() + t * heads * dim);
  }
}

// All heads of consecutive queries. `tile`: queries per item (0: all in one). `split`: segments per item, merged
// afterwards (0: each item goes through all of its segments).
Out<float, 3> attention(Memory memory, int layer, Ints block_table, int position, In<float, 3> q, int kv_heads,
                        float scale, const std::string& kv, int tile, int split, const std::string& isa) {
  const int queries = static_cast<int>(q.shape(0)), heads = static_cast<int>(q.shape(1)),
            dim = static_cast<int>(q.shape(2));
  require(kv_heads > 0 && heads % kv_heads == 0, "kv_heads must divide the heads of q.");
  const KvCache cache = cache_of(memory, kv_heads, dim, kv);
  require(layer >= 0 && layer < cache.layers && position >= 0, "layer or position is out of range.");
  require(static_cast<size_t>(position + queries + kBlockTokens - 1) / kBlockTokens <= block_table.shape(0),
          "The block table is too short.");
  for (size_t i = 0; i < block_table.shape(0); ++i)
    require(block_table.data()[i] >= 0 && static_cast<size_t>(block_table.data()[i]) < memory.shape(0),
            "A block of the table does not exist.");
  const Kernels& k = table(isa);
  const int group = heads / kv_heads;
  if (tile <= 0) tile = std::max(queries, 1);
  auto out = make<float, 3>({q.shape(0), q.shape(1), q.shape(2)});
  const int most = (position + queries + kSegment - 1) / kSegment;
  const size_t record = static_cast<size_t>(dim) + 2;
  std::vector<float> parts(split > 0 ? static_cast<size_t>(tile * group * most) * record : 0);

  nb::gil_scoped_release release;
  for (int head = 0; head < kv_heads; ++head)
    for (int first = 0; first < queries; first += tile) {
      AttentionItem item;
      item.cache = &cache;
      item.layer = layer;
      item.table = block_table.data();
      item.q = q.data() + static_cast<int64_t>(first) * heads * dim;
      item.ldq = item.ldo = static_cast<int64_t>(heads) * dim;
      item.position = position + first;
      item.queries = std::min(tile, queries - first);
      item.kv_head = head;
      item.group = group;
      item.scale = scale;
      item.out = out.data() + static_cast<int64_t>(first) * heads * dim;
      const int segments = (item.position + item.queries + kSegment - 1) / kSegment;
      if (split <= 0) {
        item.segment_end = segments;
        k.attention(item);
        continue;
      }
      const int rows = item.queries * group;
      item.ldp = segments * static_cast<int64_t>(record);
      for (int s = 0; s < segments; s += split) {
        item.segment_begin = s;
        item.segment_end = std::min(s + split, segments);
        item.partial = parts.data() + static_cast<size_t>(s) * record;
        k.attention(item);
      }
      for (int r = 0; r < rows; ++r)
        k.attention_merge(parts.data() + r * item.ldp, segments, dim,
                          item.out + (r / group) * item.ldo + (head * group + r % group) * dim);
    }
  return out;
}

int32_t choose(Floats logits, Ints history, int prompt_tokens, uint64_t seed, float temperature, int top_k, float top_p,
               float min_p, float repetition, float frequency, float presence,
               const std::vector<std::pair<int32_t, float>>& bias, const std::vector<int32_t>& banned,
               std::optional<Ints> mask, const std::string& isa) {
  const size_t vocab = logits.shape(0);
  const auto is_id = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < vocab; };
  require(vocab > 0, "There are no logits.");
  require(prompt_tokens >= 0 && static_cast<size_t>(prompt_tokens) <= history.shape(0),
          "prompt_tokens is longer than the history.");
  require(std::all_of(history.data(), history.data() + history.shape(0), is_id),
          "An id of the history is out of range.");
  require(std::all_of(banned.begin(), banned.end(), is_id), "A banned id is out of range.");
  require(!mask || mask->shape(0) == (vocab + 31) / 32, "The mask must have one bit per id.");
  std::vector<int32_t> ids;
  std::vector<float> values;
  for (const auto& [id, value] : bias) {
    require(is_id(id), "An id of the bias is out of range.");
    ids.push_back(id);
    values.push_back(value);
  }
  // Kept between calls, so that a benchmark measures the choice and not the pages.
  static thread_local std::vector<float> work;
  static thread_local std::vector<int32_t> counts;
  work.resize(vocab);
  counts.resize(vocab);
  Choice c;
  c.logits = logits.data();
  c.work = work.data();
  c.counts = counts.data();
  c.vocab = static_cast<int32_t>(vocab);
  c.history = history.data();
  c.history_tokens = static_cast<int32_t>(history.shape(0));
  c.prompt_tokens = prompt_tokens;
  c.seed = seed;
  c.temperature = temperature;
  c.top_p = top_p;
  c.min_p = min_p;
  c.top_k = top_k;
  c.repetition = repetition;
  c.frequency = frequency;
  c.presence = presence;
  c.bias_ids = ids.data();
  c.bias_values = values.data();
  c.bias_count = static_cast<int32_t>(ids.size());
  c.banned = banned.data();
  c.banned_count = static_cast<int32_t>(banned.size());
  c.mask = mask ? mask->data() : nullptr;
  const int32_t id = table(isa).choose(c);
  int32_t dirty = 0;
  for (int32_t n : counts) dirty |= n;
  if (dirty) throw std::logic_error("choose left its counts dirty.");
  return id;
}

std::tuple<float, Out<int32_t, 1>, Out<float, 1>> score(Floats logits, int token, int top, const std::string& isa) {
  const size_t vocab = logits.shape(0);
  require(token >= 0 && static_cast<size_t>(token) < vocab, "token is out of range.");
  require(top >= 0, "top is negative.");
  auto ids = make<int32_t, 1>({static_cast<size_t>(top)});
  auto values = make<float, 1>({static_cast<size_t>(top)});
  const float p = table(isa).score(logits.data(), static_cast<int32_t>(vocab), token, top, ids.data(), values.data());
  return {p, ids, values};
}

Out<uint32_t, 1> random_words(uint64_t seed, uint32_t index, int count, const std::string& isa) {
  require(count >= 0, "count is negative.");
  auto out = make<uint32_t, 1>({static_cast<size_t>(count)});
  table(isa).random_words(seed, index, count, out.data());
  return out;
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (int i = 0; const Kernels* kernels = runnable_kernels(i); ++i) names.push_back(kernels->isa);
  return names;
}

}  // namespace

void bind_ops(nb::module_& m) {
  nb::module_ ops = m.def_submodule("ops", "Single kernels on NumPy arrays, for tests and benchmarks.");
  ops.def("isas", &isas, "The instruction sets that this processor runs, the plainest first.");
  ops.def("rms_norm", &rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a, "offset"_a = 0.0f, nb::kw_only(),
          "isa"_a = "", "[rows, cols] → [rows, cols].");
  ops.def("rope", &rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(), "interleaved"_a, nb::kw_only(),
          "isa"_a = "", "[tokens, heads, head_dim] turned by cos, sin [tokens, dim / 2].");
  ops.def("kv_write", &kv_write, "memory"_a.noconvert(), "layer"_a, "table"_a.noconvert(), "position"_a,
          "keys"_a.noconvert(), "values"_a.noconvert(), nb::kw_only(), "kv"_a, "isa"_a = "",
          "K and V [tokens, kv_heads, head_dim] of consecutive positions into KV memory [blocks, layers, bytes].");
  ops.def("attention", &attention, "memory"_a.noconvert(), "layer"_a, "table"_a.noconvert(), "position"_a,
          "q"_a.noconvert(), nb::kw_only(), "kv_heads"_a, "scale"_a, "kv"_a, "tile"_a = 0, "split"_a = 0, "isa"_a = "",
          "q [tokens, heads, head_dim] of consecutive positions → the same shape. `tile` queries an item; `split` "
          "segments an item, merged afterwards (0: whole).");
  ops.def("choose", &choose, "logits"_a.noconvert(), "history"_a.noconvert(), nb::kw_only(), "prompt_tokens"_a = 0,
          "seed"_a = 0, "temperature"_a = 0.0f, "top_k"_a = 0, "top_p"_a = 1.0f, "min_p"_a = 0.0f,
          "repetition"_a = 1.0f, "frequency"_a = 0.0f, "presence"_a = 0.0f,
          "bias"_a = std::vector<std::pair<int32_t, float>>(), "banned"_a = std::vector<int32_t>(),
          "mask"_a.noconvert() = nb::none(), "isa"_a = "", "The id that ChoiceRule gives; -1 if there is none.");
  ops.def("score", &score, "logits"_a.noconvert(), "token"_a, "top"_a, nb::kw_only(), "isa"_a = "",
          "ln p(token), and the most likely ids with theirs.");
  ops.def("random_words", &random_words, "seed"_a, "index"_a, "count"_a, nb::kw_only(), "isa"_a = "",
          "The random words of ids 0 to count - 1 at output index `index`.");
}

}  // namespace octavo

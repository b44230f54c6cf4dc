// Packing, threads and the instruction set; and, in octavo._kernels.ops, products of a chosen instruction set on NumPy
// arrays with the measurements that the benchmarks print. Knows no layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "octavo.h"
#include "pack.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

// Memory on a cache line that becomes an array, or is freed.
template <class T>
class Memory {
 public:
  explicit Memory(size_t count)
      : data_(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64 + 64))) {
    if (!data_) throw std::bad_alloc();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(data_); }
  T* get() const { return data_; }
  template <int N>
  Out<T, N> array(const size_t (&shape)[N]) {
    T* data = std::exchange(data_, nullptr);
    return Out<T, N>(data, N, shape, nb::capsule(data, [](void* p) noexcept { std::free(p); }));
  }

 private:
  T* data_;
};

std::tuple<const char*, int, bool, Out<uint8_t, 1>> pack(In<uint8_t, 1> raw, int ggml_type, int64_t rows,
                                                         int64_t cols) {
  const Matrix shape = packed_shape(ggml_type, rows, cols);
  const int64_t need = ggml_bytes(ggml_type, rows, cols), size = packed_bytes(shape);
  require(static_cast<int64_t>(raw.size()) == need,
          "raw has " + std::to_string(raw.size()) + " bytes: " + std::to_string(rows) + " × " + std::to_string(cols) +
              " weights of ggml_type " + std::to_string(ggml_type) + " are " + std::to_string(need));
  Memory<uint8_t> packed(static_cast<size_t>(size));
  {
    nb::gil_scoped_release release;
    pack_matrix(raw.data(), ggml_type, rows, cols, packed.get(), default_threads());
  }
  return {container_name(shape.container), shape.zero_point, shape.has_min != 0,
          packed.array<1>({static_cast<size_t>(size)})};
}

// A packed matrix and the array that holds it.
struct BoundMatrix {
  In<uint8_t, 1> packed;
  Matrix matrix;

  BoundMatrix(In<uint8_t, 1> bytes, const std::string& container, int64_t rows, int64_t cols, int zero_point,
              bool has_min)
      : packed(std::move(bytes)) {
    require(rows >= 1 && rows < (1 << 28), "rows " + std::to_string(rows) + ": out of range");
    require(cols >= 1 && cols <= kMaxColumns, "cols " + std::to_string(cols) + ": out of range");
    matrix.data = packed.data();
    matrix.rows = static_cast<int32_t>(rows);
    matrix.cols = static_cast<int32_t>(cols);
    matrix.container = container_of(container.c_str());
    matrix.zero_point = zero_point;
    matrix.has_min = has_min;
    matrix.strip_bytes = strip_bytes(matrix.container, has_min, cols);
    require(!integer() || cols % kGroup == 0, "cols " + std::to_string(cols) + ": must be a multiple of 32");
    require(is_kind(matrix.container, zero_point, has_min),
            "zero_point " + std::to_string(zero_point) + (has_min ? " with" : " without") + " has_min: no matrix in '" +
                container + "' is of this kind");
    require(static_cast<int64_t>(packed.size()) == packed_bytes(matrix),
            "packed has " + std::to_string(packed.size()) + " bytes: must be " + std::to_string(packed_bytes(matrix)));
  }
  bool integer() const { return is_integer(matrix.container); }
};

const Kernels& table(const std::string& isa) {
  const Kernels& kernels = select_kernels(isa.c_str());
  require(isa.empty() || isa == kernels.isa,
          "isa '" + isa + "': this processor does not run it; its best is " + kernels.isa);
  return kernels;
}

// Rows of activations in both forms.
struct Activations {
  Memory<int8_t> q;
  Memory<float> scale;
  Memory<int32_t> sum;
  Memory<int8_t> outlier;
  Input input;

  Activations(const Kernels& kernels, const float* x, int64_t rows, int64_t cols)
      : q(static_cast<size_t>(rows * cols)),
        scale(static_cast<size_t>(rows * (cols / kGroup))),
        sum(static_cast<size_t>(rows * 2 * (cols / kGroup))),
        outlier(static_cast<size_t>(rows * (cols / kGroup))) {
    const int64_t groups = cols / kGroup;
    if (cols % kGroup == 0)
      for (int64_t r = 0; r < rows; ++r)
        kernels.quantize(x + r * cols, static_cast<int32_t>(cols), q.get() + r * cols, scale.get() + r * groups,
                         sum.get() + r * 2 * groups, outlier.get() + r * groups);
    input = {x, q.get(), scale.get(), sum.get(), outlier.get(), static_cast<int32_t>(cols)};
  }
};

std::tuple<Out<int8_t, 2>, Out<float, 2>, Out<int32_t, 2>, Out<int8_t, 2>> quantize(In<float, 2> x,
                                                                                    const std::string& isa) {
  const size_t rows = x.shape(0), cols = x.shape(1);
  require(cols % kGroup == 0, "cols " + std::to_string(cols) + ": must be a multiple of 32");
  Activations a(table(isa), x.data(), static_cast<int64_t>(rows), static_cast<int64_t>(cols));
  const size_t groups = cols / kGroup;
  return {a.q.array<2>({rows, cols}), a.scale.array<2>({rows, groups}), a.sum.array<2>({rows, 2 * groups}),
          a.outlier.array<2>({rows, groups})};
}

// work(first, count) for every block of at most `most` of the rows [begin, end).
template <class F>
void blocks(int32_t begin, int32_t end, int32_t most, F&& work) {
  for (int32_t row = begin; row < end; row += most) work(row, std::min(most, end - row));
}

std::pair<int32_t, int32_t> strips_of(const Matrix& w, const std::optional<std::tuple<int, int>>& strips) {
  const int32_t begin = strips ? std::get<0>(*strips) : 0, end = strips ? std::get<1>(*strips) : w.strips();
  require(0 <= begin && begin <= end && end <= w.strips(), "strips: out of range");
  return {begin, end};
}

Out<float, 2> copy_or_zero(size_t rows, size_t cols, const std::optional<In<float, 2>>& add) {
  Memory<float> out(rows * cols);
  if (add) {
    require(add->shape(0) == rows && add->shape(1) == cols, "add: must have the shape of the result");
    std::memcpy(out.get(), add->data(), rows * cols * sizeof(float));
  } else {
    std::memset(out.get(), 0, rows * cols * sizeof(float));
  }
  return out.array<2>({rows, cols});
}

Out<float, 2> linear(const BoundMatrix& w, In<float, 2> x, std::optional<In<float, 1>> bias, float scale,
                     std::optional<In<float, 2>> add, std::optional<std::tuple<int, int>> strips,
                     const std::string& isa) {
  const Kernels& kernels = table(isa);
  const Matrix& m = w.matrix;
  require(x.shape(1) == static_cast<size_t>(m.cols), "x: must have as many columns as the matrix");
  require(!bias || bias->shape(0) == static_cast<size_t>(m.rows), "bias: must have as many values as outputs");
  const std::pair<int32_t, int32_t> range = strips_of(m, strips);
  const int64_t rows = static_cast<int64_t>(x.shape(0));
  Out<float, 2> out = copy_or_zero(x.shape(0), static_cast<size_t>(m.rows), add);
  nb::gil_scoped_release release;
  const Activations a(kernels, x.data(), rows, m.cols);
  const auto panel = std::make_unique<Panel>();
  blocks(0, static_cast<int32_t>(rows), block_rows(m), [&](int32_t row, int32_t count) {
    kernels.prepare(m, a.input, row, count, panel.get());
    kernels.linear(m, *panel, range.first, range.second, out.data() + int64_t{row} * m.rows, m.rows,
                   bias ? bias->data() : nullptr, scale, add.has_value());
  });
  return out;
}

Out<float, 2> gated(const BoundMatrix& gate, const BoundMatrix& up, In<float, 2> x,
                    std::optional<std::tuple<int, int>> strips, const std::string& isa) {
  const Kernels& kernels = table(isa);
  const Matrix& g = gate.matrix;
  require(g.rows == up.matrix.rows && g.cols == up.matrix.cols, "gate, up: must have the same shape");
  require(x.shape(1) == static_cast<size_t>(g.cols), "x: must have as many columns as the matrices");
  const std::pair<int32_t, int32_t> range = strips_of(g, strips);
  const int64_t rows = static_cast<int64_t>(x.shape(0));
  Out<float, 2> out = copy_or_zero(x.shape(0), static_cast<size_t>(g.rows), std::nullopt);
  nb::gil_scoped_release release;
  const Activations a(kernels, x.data(), rows, g.cols);
  const auto panels = std::make_unique<Panel[]>(2);
  blocks(0, static_cast<int32_t>(rows), std::min(block_rows(g), block_rows(up.matrix)),
         [&](int32_t row, int32_t count) {
           kernels.prepare(g, a.input, row, count, &panels[0]);
           kernels.prepare(up.matrix, a.input, row, count, &panels[1]);
           kernels.gated(g, up.matrix, panels[0], panels[1], range.first, range.second,
                         out.data() + int64_t{row} * g.rows, g.rows);
         });
  return out;
}

Out<float, 1> dequantize_row(const BoundMatrix& w, int row, float scale, const std::string& isa) {
  require(row >= 0 && row < w.matrix.rows, "row " + std::to_string(row) + ": out of range");
  Memory<float> out(static_cast<size_t>(w.matrix.cols));
  table(isa).dequantize_row(w.matrix, row, scale, out.get());
  return out.array<1>({static_cast<size_t>(w.matrix.cols)});
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of each repetition of all products in turn, run as a step runs them: few rows divide the strips among the
// workers, many rows are claimed in tiles.
std::vector<double> time_linear(const std::vector<const BoundMatrix*>& matrices, int rows, int threads, int repeats,
                                const std::string& isa) {
  constexpr int kTile = 32;
  const Kernels& kernels = table(isa);
  require(rows >= 1 && threads >= 1 && repeats >= 1, "rows, threads, repeats: must be at least 1");
  nb::gil_scoped_release release;
  int64_t cols = 1, outputs = 1;
  for (const BoundMatrix* w : matrices) {
    cols = std::max<int64_t>(cols, w->matrix.cols);
    outputs = std::max<int64_t>(outputs, w->matrix.rows);
  }
  const Memory<float> x(static_cast<size_t>(rows * cols)), out(static_cast<size_t>(rows * outputs));
  for (int64_t i = 0; i < rows * cols; ++i) x.get()[i] = static_cast<float>(i * 7919 % 2003 - 1001) * 1e-3f;
  std::map<int32_t, Activations> inputs;  // by width
  for (const BoundMatrix* w : matrices) inputs.try_emplace(w->matrix.cols, kernels, x.get(), rows, w->matrix.cols);

  std::vector<double> seconds;
  const auto panels = std::make_unique<Panel[]>(static_cast<size_t>(threads));
  Pool pool(threads);
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int worker, Pool& workers) {
      Panel* panel = &panels[static_cast<size_t>(worker)];
      for (const BoundMatrix* bound : matrices) {
        const Matrix& w = bound->matrix;
        const Input& in = inputs.find(w.cols)->second.input;
        if (workers.behind(worker)) {
        } else if (rows <= kTile) {
          const int32_t most = block_rows(w), piece = std::max(1, w.strips() / (12 * threads));
          const int32_t pieces = (w.strips() + piece - 1) / piece, claims = (rows + most - 1) / most * pieces;
          int32_t prepared = -1;
          for (int32_t at; (at = static_cast<int32_t>(workers.claim())) < claims;) {
            const int32_t row = at / pieces * most, count = std::min(most, rows - row), first = at % pieces * piece;
            if (row != prepared) kernels.prepare(w, in, row, count, panel);
            prepared = row;
            kernels.linear(w, *panel, first, std::min(first + piece, w.strips()), out.get() + int64_t{row} * w.rows,
                           w.rows, nullptr, 1.0f, false);
          }
        } else {
          for (int row; (row = static_cast<int>(workers.claim(kTile))) < rows;)
            blocks(row, std::min(row + kTile, rows), block_rows(w), [&](int32_t first, int32_t count) {
              kernels.prepare(w, in, first, count, panel);
              kernels.linear(w, *panel, 0, w.strips(), out.get() + int64_t{first} * w.rows, w.rows, nullptr, 1.0f,
                             false);
            });
        }
        workers.barrier(worker);
      }
    });
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

// Products per second of each repetition, all threads together, with nothing read but registers.
std::vector<double> time_products(int threads, int repeats, const std::string& isa) {
  require(threads >= 1 && repeats >= 1, "threads, repeats: must be at least 1");
  const Kernels& kernels = table(isa);
  nb::gil_scoped_release release;
  std::vector<double> rates;
  Pool pool(threads);
  for (int i = 0; i < repeats; ++i) {
    std::atomic<int64_t> products{0};
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int, Pool&) { products += kernels.multiply_only(1 << 17); });
    rates.push_back(static_cast<double>(products) / seconds_since(start));
  }
  return rates;
}

// Seconds of each repetition of reading all bytes once, evenly divided among the threads.
std::vector<double> time_read(In<uint8_t, 1> bytes, int threads, int repeats) {
  require(threads >= 1 && repeats >= 1, "threads, repeats: must be at least 1");
  nb::gil_scoped_release release;
  const uint8_t* data = bytes.data();
  const int64_t lines = static_cast<int64_t>(bytes.size()) / 64;
  std::vector<double> seconds;
  std::atomic<uint64_t> total{0};  // so that nothing is optimised away
  Pool pool(threads);
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int, Pool& workers) {
      constexpr int64_t kPiece = 4096;  // lines
      uint64_t sum[8] = {};
      for (int64_t first; (first = workers.claim(kPiece)) < lines;) {
        const uint8_t* end = data + 64 * std::min(first + kPiece, lines);
        for (const uint8_t* p = data + 64 * first; p < end; p += 64) {
          uint64_t words[8];
          std::memcpy(words, p, 64);
          for (int k = 0; k < 8; ++k) sum[k] += words[k];
        }
      }
      for (const uint64_t s : sum) total += s;
    });
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

// The pool's contract, for its tests. Over `phases` with a barrier after each: how often each item was claimed; how
// many workers took part in a phase, and of those how many found it complete after its barrier; how many runs a worker
// was in, and in how many of them it rounded to nearest and kept denormals.
std::tuple<std::vector<int>, int64_t, int64_t, int64_t, int64_t> drill(int threads, int phases, int items, int runs) {
  require(threads >= 1 && phases >= 0 && items >= 0 && runs >= 0, "threads, phases, items, runs: must not be negative");
  nb::gil_scoped_release release;
  Pool pool(threads);
  std::vector<int> claimed(static_cast<size_t>(items));  // not atomic: barriers order it
  std::atomic<int64_t> seen{0}, complete{0}, joined{0}, exact{0};
  for (int i = 0; i < runs; ++i) {
    const int before = i * phases;
    pool.run([&](int worker, Pool& workers) {
      const volatile float one = 1.0f, three = 3.0f, small = 0x1p-126f, half = 0.5f;
      ++joined;
      exact += one / three == 0x1.555556p-2f && small * half > 0.0f;
      for (int phase = 0; phase < phases; ++phase) {
        const bool present = !workers.behind(worker);
        for (int64_t item; present && (item = workers.claim()) < items;) ++claimed[static_cast<size_t>(item)];
        workers.barrier(worker);
        if (present) {
          bool all = true;
          for (const int count : claimed) all = all && count == before + phase + 1;
          ++seen;
          complete += all;
        }
        workers.barrier(worker);
      }
    });
  }
  return {claimed, seen.load(), complete.load(), joined.load(), exact.load()};
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.attr("KERNEL_VERSION") = kKernelVersion;
  m.def("isa", [] { return select_kernels("").isa; }, "The instruction set in use, one of ops.isas().");
  m.def("default_threads", &default_threads, "root"_a = "/",
        "Processors that this process may use: its affinity, limited by the quota of its control groups.");
  m.def("pack_matrix", &pack, "raw"_a.noconvert(), "ggml_type"_a, "rows"_a, "cols"_a,
        "A GGUF tensor's bytes as (container, zero_point, has_min, packed bytes). ValueError: another type or size.");

  nb::module_ ops = m.def_submodule("ops");
  nb::class_<BoundMatrix>(ops, "Matrix", "A packed matrix; keeps its bytes.")
      .def(nb::init<In<uint8_t, 1>, const std::string&, int64_t, int64_t, int, bool>(), "packed"_a.noconvert(),
           "container"_a, "rows"_a, "cols"_a, "zero_point"_a = 0, "has_min"_a = false);
  ops.def(
      "quantize", &quantize, "x"_a.noconvert(), nb::kw_only(), "isa"_a = "",
      "[rows, cols] as int8, with scales [rows, cols / 32], sums [rows, cols / 16] and places of outliers (−1: none).");
  ops.def("linear", &linear, "w"_a, "x"_a.noconvert(), nb::kw_only(), "bias"_a.noconvert() = nb::none(),
          "scale"_a = 1.0f, "add"_a.noconvert() = nb::none(), "strips"_a = nb::none(), "isa"_a = "",
          "scale · (W·x + bias) + add, [rows, outputs]; outside of strips [begin, end), add or zero.");
  ops.def("gated", &gated, "gate"_a, "up"_a, "x"_a.noconvert(), nb::kw_only(), "strips"_a = nb::none(), "isa"_a = "",
          "silu(gate·x) · (up·x), [rows, outputs].");
  ops.def("dequantize_row", &dequantize_row, "w"_a, "row"_a, "scale"_a = 1.0f, nb::kw_only(), "isa"_a = "",
          "scale · W[row].");
  ops.def("time_linear", &time_linear, "matrices"_a, "rows"_a, nb::kw_only(), "threads"_a, "repeats"_a, "isa"_a = "",
          "Seconds of each repetition of all products, one after the other.");
  ops.def("time_products", &time_products, nb::kw_only(), "threads"_a, "repeats"_a, "isa"_a = "",
          "4-bit products per second of each repetition, from registers: what no kernel can exceed.");
  ops.def("time_read", &time_read, "data"_a.noconvert(), nb::kw_only(), "threads"_a, "repeats"_a,
          "Seconds of each repetition of reading all bytes.");
  ops.def("drill", &drill, "threads"_a, "phases"_a, "items"_a, "runs"_a,
          "How often each item was claimed; phases that workers saw, and saw whole; runs they were in, and rounded as "
          "they must.");
}

}  // namespace octavo

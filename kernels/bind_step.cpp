// Python's door to the runtime: Program, built call by call, and Runtime, which reads Plan structs directly. Knows
// the field names of backends/base.py, and no arithmetic.
//
// Reading the structs here costs 30 ns an attribute, a tenth of what flat arrays cost to build in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Weights = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A Program with the mapping that its matrices lie in.
struct BoundProgram {
  Weights weights;
  Program program;
  BoundProgram(Weights mapped, const Sizes& sizes, RopeTable rope, std::vector<int32_t> kv_layers)
      : weights(std::move(mapped)),
        program(weights.data(), weights.nbytes(), sizes, std::move(rope), std::move(kv_layers)) {}
};

// An attribute of a struct; its name is made once.
class Field {
 public:
  explicit Field(const char* name) : name_(PyUnicode_InternFromString(name)) {}
  nb::object operator()(nb::handle from) const {
    PyObject* value = PyObject_GetAttr(from.ptr(), name_);
    if (!value) throw nb::python_error();
    return nb::steal(value);
  }

 private:
  PyObject* name_;  // lives as long as the module
};

int64_t integer(nb::handle value) {
  const long long x = PyLong_AsLongLong(value.ptr());
  if (x == -1 && PyErr_Occurred()) throw nb::python_error();
  return x;
}

int32_t small(nb::handle value) {
  const int64_t x = integer(value);
  if (x < INT32_MIN || x > INT32_MAX) fail("A number of the plan is %lld; 32 bits hold it no more.", (long long)x);
  return static_cast<int32_t>(x);
}

float real(nb::handle value) {
  const double x = PyFloat_AsDouble(value.ptr());
  if (x == -1.0 && PyErr_Occurred()) throw nb::python_error();
  return static_cast<float>(x);
}

// The elements of a tuple (or list), borrowed.
class Items {
 public:
  explicit Items(nb::object sequence) : sequence_(std::move(sequence)) {
    if (!PyTuple_Check(sequence_.ptr()) && !PyList_Check(sequence_.ptr()))
      throw nb::type_error("A sequence of the plan is neither a tuple nor a list.");
  }
  size_t size() const { return static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence_.ptr())); }
  nb::handle operator[](size_t i) const {
    return PySequence_Fast_GET_ITEM(sequence_.ptr(), static_cast<Py_ssize_t>(i));
  }

 private:
  nb::object sequence_;
};

// Plan → StepPlan.
class Reader {
 public:
  explicit Reader(int32_t groups) : groups_(static_cast<size_t>(groups)) {}

  const StepPlan& read(nb::handle plan) {
    plan_.clear();
    plan_.step = integer(step_(plan));
    const Items opens(opens_(plan)), copies(copies_(plan)), rows(rows_(plan)), samples(samples_(plan));
    for (size_t i = 0; i < opens.size(); ++i) read_open(opens[i], i);
    for (size_t i = 0; i < copies.size(); ++i)
      plan_.copies.push_back({small(group_(copies[i])), small(source_(copies[i])), small(target_(copies[i]))});
    for (size_t i = 0; i < rows.size(); ++i) read_row(rows[i]);
    for (size_t i = 0; i < samples.size(); ++i)
      plan_.samples.push_back({small(row_(samples[i])), small(offset_(samples[i])), small(slot_(samples[i])),
                               small(target_(samples[i])), small(top_(samples[i]))});
    return plan_;
  }

 private:
  Span ids(nb::object sequence) {
    const Items items(std::move(sequence));
    const Span span{static_cast<int32_t>(plan_.ids.size()), static_cast<int32_t>(items.size())};
    for (size_t i = 0; i < items.size(); ++i) plan_.ids.push_back(small(items[i]));
    return span;
  }

  // One span of ids per KV group.
  int32_t tables(nb::object sequence, const char* what) {
    const Items items(std::move(sequence));
    if (items.size() != groups_) fail("%s has %zu entries; the model has %zu KV groups.", what, items.size(), groups_);
    const int32_t place = static_cast<int32_t>(plan_.spans.size());
    for (size_t i = 0; i < items.size(); ++i) plan_.spans.push_back(ids(nb::borrow(items[i])));
    return place;
  }

  void read_open(nb::handle from, size_t index) {
    StepPlan::Open open;
    open.slot = small(slot_(from));
    open.history = ids(history_(from));
    open.tables = tables(tables_(from), "opens: tables");
    open.pooling = pooling(pooling_(from));
    if (plan_.rules.size() <= index) plan_.rules.resize(index + 1);
    read_rule(rule_(from), plan_.rules[index]);
    plan_.opens.push_back(open);
  }

  static Pooling pooling(nb::object name) {
    if (name.is_none()) return Pooling::None;
    if (!PyUnicode_Check(name.ptr())) throw nb::type_error("opens: pooling is neither a string nor None.");
    for (const auto& [known, pooling] : {std::pair{"mean", Pooling::Mean}, {"last", Pooling::Last}})
      if (PyUnicode_CompareWithASCIIString(name.ptr(), known) == 0) return pooling;
    fail("opens: pooling is '%s'; it must be mean or last.", nb::str(name).c_str());
  }

  void read_rule(nb::handle from, Rule& rule) const {
    rule.prompt_tokens = small(prompt_tokens_(from));
    rule.seed = PyLong_AsUnsignedLongLongMask(seed_(from).ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    rule.temperature = real(temperature_(from));
    rule.top_k = small(top_k_(from));
    rule.top_p = real(top_p_(from));
    rule.min_p = real(min_p_(from));
    rule.repetition = real(repetition_(from));
    rule.frequency = real(frequency_(from));
    rule.presence = real(presence_(from));
    rule.min_tokens = small(min_tokens_(from));
    rule.logprobs = small(logprobs_(from));
    rule.bias_ids.clear();
    rule.bias_values.clear();
    rule.banned_early.clear();
    const Items bias(bias_(from)), banned(banned_early_(from));
    for (size_t i = 0; i < bias.size(); ++i) {
      const Items pair(nb::borrow(bias[i]));
      if (pair.size() != 2) fail("rule: a bias has %zu parts; it is (id, value).", pair.size());
      rule.bias_ids.push_back(small(pair[0]));
      rule.bias_values.push_back(real(pair[1]));
    }
    for (size_t i = 0; i < banned.size(); ++i) rule.banned_early.push_back(small(banned[i]));
  }

  void read_row(nb::handle from) {
    StepPlan::Row row;
    row.slot = small(slot_(from));
    row.start = small(start_(from));
    row.count = small(count_(from));
    row.tokens = ids(tokens_(from));
    nb::object blocks = blocks_(from);
    const Span at = ids(tables_at_(from));
    if (at.count || Items(blocks).size()) {
      if (static_cast<size_t>(at.count) != groups_)
        fail("rows: tables_at has %d entries; the model has %zu KV groups.", at.count, groups_);
      row.at = at.begin;
      row.tables = tables(std::move(blocks), "rows: blocks");
    }
    plan_.rows.push_back(row);
  }

  const size_t groups_;
  StepPlan plan_;
  const Field step_{"step"}, opens_{"opens"}, copies_{"copies"}, rows_{"rows"}, samples_{"samples"};
  const Field slot_{"slot"}, history_{"history"}, tables_{"tables"}, rule_{"rule"}, pooling_{"pooling"};
  const Field group_{"group"}, source_{"source"}, target_{"target"};
  const Field start_{"start"}, count_{"count"}, tokens_{"tokens"}, tables_at_{"tables_at"}, blocks_{"blocks"};
  const Field row_{"row"}, offset_{"offset"}, top_{"top"};
  const Field prompt_tokens_{"prompt_tokens"}, seed_{"seed"}, temperature_{"temperature"}, top_k_{"top_k"};
  const Field top_p_{"top_p"}, min_p_{"min_p"}, repetition_{"repetition"}, frequency_{"frequency"};
  const Field presence_{"presence"}, bias_{"bias"}, min_tokens_{"min_tokens"}, banned_early_{"banned_early"};
  const Field logprobs_{"logprobs"};
};

// The threads of one runtime, or of several.
struct Threads {
  explicit Threads(int count) : pool(std::make_shared<Pool>(checked(count))) {}
  static int checked(int count) {
    if (count < 1 || count > 1024) fail("threads is %d; it must be 1 to 1024.", count);
    return count;
  }
  std::shared_ptr<Pool> pool;
  std::atomic<bool> busy{false};
};

class BoundRuntime {
 public:
  // `beside`: whose threads it uses, instead of some of its own. `progress`: the word that it writes how far it is to.
  BoundRuntime(const BoundProgram& program, const StepLimits& limits, const char* kv, int threads, const char* isa,
               const BoundRuntime* beside, std::optional<Words> progress)
      : weights_(program.weights),
        threads_(beside ? beside->threads_ : std::make_shared<Threads>(threads)),
        progress_(std::move(progress)),
        runtime_(
            std::make_unique<Runtime>(program.program, limits, kv_type_of(kv), threads_->pool, select_kernels(isa))),
        reader_(runtime_->groups()) {
    static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t) && std::atomic<uint64_t>::is_always_lock_free);
    if (!progress_) return;
    if (progress_->size() != 1 || reinterpret_cast<uintptr_t>(progress_->data()) % alignof(std::atomic<uint64_t>))
      fail("progress is not one aligned word.");
    runtime_->set_progress(reinterpret_cast<std::atomic<uint64_t>*>(progress_->data()));
  }

  void launch(nb::handle plan) {
    const Turn turn(threads_->busy);
    Runtime& runtime = open();
    const StepPlan& flat = reader_.read(plan);
    nb::gil_scoped_release released;
    runtime.launch(flat);
  }

  // One (token, logprob | None, top) per sample; of a slot that pools, the bytes of its vector behind them.
  nb::list sample(std::optional<nb::list> masks) {
    const Turn turn(threads_->busy);
    Runtime& runtime = open();
    std::vector<Mask> kept;
    std::vector<const int32_t*> words;
    if (masks) {
      if (masks->size() != runtime.samples())
        fail("There are %zu masks for %zu samples.", masks->size(), runtime.samples());
      for (nb::handle each : *masks) {
        words.push_back(nullptr);
        if (each.is_none()) continue;
        Mask mask;
        if (!nb::try_cast<Mask>(each, mask, false)) throw nb::type_error("A mask is not a contiguous int32 array.");
        const size_t need = (static_cast<size_t>(runtime.vocab()) + 31) / 32;
        if (mask.shape(0) != need) fail("A mask has %zu words; the vocabulary needs %zu.", mask.shape(0), need);
        words.back() = mask.data();
        kept.push_back(std::move(mask));
      }
    }
    {
      nb::gil_scoped_release released;
      runtime.sample(masks ? words.data() : nullptr);
    }
    nb::list answers;
    for (const Answer& answer : runtime.answers()) {
      if (answer.vector) {
        const nb::bytes vector(answer.vector, static_cast<size_t>(runtime.hidden()) * sizeof(float));
        answers.append(nb::make_tuple(answer.token, nb::none(), nb::tuple(), vector));
        continue;
      }
      nb::list top;
      if (answer.scored)
        for (int32_t i = answer.top.begin; i < answer.top.begin + answer.top.count; ++i)
          top.append(nb::make_tuple(runtime.top_ids()[i], runtime.top_values()[i]));
      nb::object logprob = answer.scored ? nb::object(nb::float_(answer.logprob)) : nb::none();
      answers.append(nb::make_tuple(answer.token, logprob, nb::tuple(top)));
    }
    return answers;
  }

  nb::bytes read_block(int32_t group, int32_t block) {
    const Turn turn(threads_->busy);
    const Runtime::BlockBytes from = open().block(group, block);
    return nb::bytes(from.data, from.bytes);
  }

  void write_block(int32_t group, int32_t block, const nb::bytes& data) {
    const Turn turn(threads_->busy);
    const Runtime::BlockBytes to = open().block(group, block);
    if (data.size() != to.bytes) fail("There are %zu bytes for a block of %zu.", data.size(), to.bytes);
    std::memcpy(to.data, data.c_str(), to.bytes);
  }

  nb::dict counters() {
    Runtime& runtime = open();
    nb::dict all;
    all["barriers"] = runtime.barriers();
    all["by_rows"] = runtime.by_rows();
    all["allocations"] = runtime.allocations();
    all["weight_bytes"] = runtime.weight_bytes();
    all["kv_bytes"] = runtime.kv_bytes();
    return all;
  }

  void measure(bool enabled) { open().measure(enabled); }

  nb::dict times() {
    double seconds[Runtime::kStages];
    open().take_times(seconds);
    nb::dict all;
    for (int stage = 0; stage < Runtime::kStages; ++stage) all[Runtime::stage_name(stage)] = seconds[stage];
    return all;
  }

  void close() {
    const Turn turn(threads_->busy);
    runtime_.reset();
  }

  Runtime& open() {
    if (!runtime_) throw std::runtime_error("The runtime is closed.");
    return *runtime_;
  }

 private:
  // One call at a time: the lock on Python is given up inside.
  class Turn {
   public:
    explicit Turn(std::atomic<bool>& busy) : busy_(busy) {
      if (busy_.exchange(true)) throw std::runtime_error("The threads are busy with a call of another thread.");
    }
    ~Turn() { busy_.store(false); }

   private:
    std::atomic<bool>& busy_;
  };

  Weights weights_;
  std::shared_ptr<Threads> threads_;
  std::optional<Words> progress_;
  std::unique_ptr<Runtime> runtime_;
  Reader reader_;
};

}  // namespace

void bind_step(nb::module_& module) {
  nb::class_<BoundProgram>(module, "Program", "A layer program over packed weights, checked while it is built.")
      .def(
          "__init__",
          [](BoundProgram* self, Weights weights, int32_t vocab, int32_t hidden, int32_t heads, int32_t kv_heads,
             int32_t head_dim, int32_t ffn, double rope_theta, int32_t rope_dim, bool rope_interleaved,
             std::vector<double> rope_factors, std::vector<int32_t> kv_layers) {
            new (self) BoundProgram(std::move(weights), Sizes{vocab, hidden, heads, kv_heads, head_dim, ffn},
                                    RopeTable{rope_theta, rope_dim, rope_interleaved, std::move(rope_factors)},
                                    std::move(kv_layers));
          },
          "weights"_a.noconvert(), nb::kw_only(), "vocab"_a, "hidden"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "ffn"_a,
          "rope_theta"_a, "rope_dim"_a, "rope_interleaved"_a, "rope_factors"_a, "kv_layers"_a)
      .def(
          "matrix",
          [](BoundProgram& self, int64_t offset, int64_t nbytes, int64_t rows, int64_t cols, const char* container,
             int32_t zero_point,
             bool has_min) { return self.program.matrix(offset, nbytes, rows, cols, container, zero_point, has_min); },
          "offset"_a, "nbytes"_a, "rows"_a, "cols"_a, "container"_a, "zero_point"_a, "has_min"_a)
      .def(
          "vector",
          [](BoundProgram& self, int64_t offset, int64_t nbytes, int64_t size) {
            return self.program.vector(offset, nbytes, size);
          },
          "offset"_a, "nbytes"_a, "size"_a)
      .def("finish", [](BoundProgram& self) { self.program.finish(); })
      .def("layer", [](BoundProgram& self) { self.program.layer(); })
      .def(
          "embed", [](BoundProgram& self, int32_t table, float scale) { self.program.embed(table, scale); }, "table"_a,
          "scale"_a)
      .def(
          "norm",
          [](BoundProgram& self, int32_t source, int32_t target, int32_t weight, float eps, float offset) {
            self.program.norm(source, target, weight, eps, offset);
          },
          "source"_a, "target"_a, "weight"_a, "eps"_a, "offset"_a)
      .def(
          "linear",
          [](BoundProgram& self, int32_t source, const std::vector<int32_t>& targets,
             const std::vector<int32_t>& weights, const std::vector<int32_t>& biases, bool add,
             float scale) { self.program.linear(source, targets, weights, biases, add, scale); },
          "source"_a, "targets"_a, "weights"_a, "biases"_a, "add"_a, "scale"_a)
      .def(
          "gated",
          [](BoundProgram& self, int32_t source, int32_t target, int32_t gate, int32_t up) {
            self.program.gated(source, target, gate, up);
          },
          "source"_a, "target"_a, "gate"_a, "up"_a)
      .def("rope", [](BoundProgram& self) { self.program.rope(); })
      .def(
          "attention",
          [](BoundProgram& self, int32_t group, int32_t place, float scale) {
            self.program.attention(group, place, scale);
          },
          "group"_a, "place"_a, "scale"_a)
      .def(
          "head",
          [](BoundProgram& self, int32_t source, int32_t weight, float scale) {
            self.program.head(source, weight, scale);
          },
          "source"_a, "weight"_a, "scale"_a);

  nb::class_<BoundRuntime>(module, "Runtime", "Slots, KV memory and threads; runs plans over them.")
      .def(
          "__init__",
          [](BoundRuntime* self, const BoundProgram& program, int32_t num_blocks, int32_t max_slots,
             int32_t max_step_tokens, int32_t max_model_len, const char* kv, int threads, const char* isa,
             const BoundRuntime* beside, std::optional<Words> progress) {
            new (self) BoundRuntime(program, StepLimits{num_blocks, max_slots, max_step_tokens, max_model_len}, kv,
                                    threads, isa, beside, std::move(progress));
          },
          "program"_a, nb::kw_only(), "num_blocks"_a, "max_slots"_a, "max_step_tokens"_a, "max_model_len"_a, "kv"_a,
          "threads"_a, "isa"_a = "", "beside"_a = nb::none(), "progress"_a = nb::none())
      .def("launch", &BoundRuntime::launch, "plan"_a)
      .def("sample", &BoundRuntime::sample, "masks"_a = nb::none(),
           "One (token, logprob or None, top) per sample of the plan launched last, or (0, None, (), vector) where the "
           "slot pools; token -1 where logits or vector are not finite.")
      .def("read_block", &BoundRuntime::read_block, "group"_a, "block"_a, "What a physical block holds, all layers.")
      .def("write_block", &BoundRuntime::write_block, "group"_a, "block"_a, "data"_a,
           "Make a physical block hold what read_block once gave.")
      .def("counters", &BoundRuntime::counters, "What the last launch did: see NativeBackend.")
      .def("measure", &BoundRuntime::measure, "enabled"_a, "Measure stages from now on, or not.")
      .def("times", &BoundRuntime::times, "Seconds of worker 0 per stage since the last call.")
      .def(
          "progress", [](BoundRuntime& self) { return self.open().progress(); }, "(step << 16) + layer.")
      .def("close", &BoundRuntime::close)
      .def_prop_ro("threads", [](BoundRuntime& self) { return self.open().threads(); })
      .def_prop_ro("block_bytes", [](BoundRuntime& self) { return self.open().block_bytes(); });
}

}  // namespace octavo

#include "ending.h"

#include "collector.h"

namespace kvtrie::binding {
namespace {

void finalize(PyObject* self) noexcept {
  const py::error_scope present;  // an error that is on its way stays
  const py::detail::value_and_holder value = collector::value_of(self, typeid(Ending));
  if (value.inst != nullptr) value.value_ptr<Ending>()->end();
}

}  // namespace

void Ending::end() noexcept {
  if (const PrefixCachePtr cache = cache_.lock()) without_gil_even_forked([&] { cache->close(); });
  over_ = true;
}

KeptEnding::KeptEnding() : ending(std::make_shared<Ending>()), reference(shared_reference(py::cast(ending))) {}

void init_ending(py::module_& m) {
  py::class_<Ending, std::shared_ptr<Ending>>(m, "_Ending", "What a callback of a cache is told by the collector.",
                                              py::custom_type_setup([](PyHeapTypeObject* made) {
                                                made->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
                                                made->ht_type.tp_traverse = &collector::show_kept;
                                                made->ht_type.tp_clear = [](PyObject*) { return 0; };
                                                made->ht_type.tp_finalize = &finalize;
                                              }))
      .def_property_readonly("over", &Ending::over, "Whether the callback is not called any more.");
}

}  // namespace kvtrie::binding

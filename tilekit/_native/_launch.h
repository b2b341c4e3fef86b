/* What the parts of the compiled module share: see _launch.c. */
#ifndef TILEKIT_LAUNCH_H
#define TILEKIT_LAUNCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { VERSION = 8 }; /* see attributes.py */

/* What is read of Python's, and why, is described in attributes.py, in the same order: `prepare` compares the two.
 *
 * Attributes of Python classes that have __slots__, read and written in place. */
#define SLOTS(X)                                                                                                                  \
    X(Stream, _create) X(Stream, _events) X(Stream, _failures) X(Stream, _lock) X(Stream, _marks) X(Stream, _names)               \
    X(Stream, _seen) X(Stream, _stable) X(Stream, _trim_at) X(Stream, address) X(Stream, closed) X(Stream, completed)             \
    X(Stream, device) X(Stream, number) X(Stream, pending)                                                                        \
    X(AccessHistory, last_write) X(AccessHistory, reads) X(AccessHistory, theirs)                                                 \
    X(Storage, _free_list) X(Storage, _leave) X(Storage, borrowed) X(Storage, device) X(Storage, guarded) X(Storage, memory)      \
    X(Storage, nbytes) X(Storage, owned) X(Storage, owner) X(Storage, readonly)                                                   \
    X(Imported, history) X(Imported, kept) X(Imported, view)                                                                      \
    X(Memory, address) X(Memory, nbytes) X(Memory, raw) X(Memory, shadow)                                                         \
    X(Device, free_lists) X(Device, garbage) X(Device, imports) X(Device, ordinal) X(Device, owners) X(Device, ranges)            \
    X(Device, retired)                                                                                                            \
    X(FreeList, capacity) X(FreeList, closed) X(FreeList, number)                                                                 \
    X(Ranges, entries) X(Ranges, leave) X(Ranges, left)                                                                           \
    X(Range, high) X(Range, low) X(Range, memory) X(Range, order) X(Range, parts) X(Range, ranges)                                \
    X(Layout, before) X(Layout, behind) X(Layout, device) X(Layout, dtype) X(Layout, itemsize) X(Layout, shape)                   \
    X(Layout, strides) X(Layout, tail) X(Layout, traits)                                                                          \
    X(Tensor, dtype) X(Tensor, flat) X(Tensor, offset) X(Tensor, shape) X(Tensor, storage) X(Tensor, strides) X(Tensor, traits)   \
    X(Partition, storage) X(Partition, tensor) X(Partition, tile_shape) X(Partition, traits) X(Traits, cuts)                      \
    X(ExecutionContext, device) X(ExecutionContext, stream)                                                                       \
    X(AndThen, function) X(AndThen, unpack)                                                                                       \
    X(Done, value)                                                                                                                \
    X(DeviceFuture, _serial) X(DeviceFuture, op) X(DeviceFuture, stream)                                                          \
    X(Form, ints) X(Form, keyed) X(Form, last) X(Form, lazy) X(Form, plans) X(Form, tiled) X(Form, tuples)                        \
    X(Form, types)                                                                                                                \
    X(Plan, device) X(Plan, elsewhere) X(Plan, home) X(Plan, native)                                                              \
    X(Kernel, _form) X(Kernel, _forms) X(Kernel, _origins) X(Kernel, _options) X(Kernel, label)                                   \
    X(KernelLaunch, _consumed) X(KernelLaunch, _form) X(KernelLaunch, _fresh) X(KernelLaunch, _label) X(KernelLaunch, _options)   \
    X(KernelLaunch, _site) X(KernelLaunch, _spent) X(KernelLaunch, arguments) X(KernelLaunch, kernel)

/* Of the class of ready-made kernels' ops, which comes later than the others: see `recalls` in _launch.pyi. */
#define RECALLED_SLOTS(X)                                                                                                         \
    X(Recalled, _begun) X(Recalled, _consumed) X(Recalled, _fresh) X(Recalled, _inputs) X(Recalled, _label) X(Recalled, _recipe)    \
    X(Recalled, _site) X(Recalled, _spent) X(Recalled, _tensors) X(Recalled, arguments) X(Recalled, spec)

/* Where a Recipe has its fields. */
#define RECIPE(X)                                                                                                                 \
    X(NEW, new) X(LAUNCHES, launches) X(OUTCOME, outcome) X(SPEC, spec) X(NATIVE, native) X(BOUND, bound)

/* Attributes and methods of objects of any class: the field of `names`, and the name. */
#define NAMES(X)                                                                                                                  \
    X(annotate, "annotate") X(append, "append") X(dict, "__dict__") X(module, "__name__") X(of_module, "__module__")              \
    X(exchange_before, "__c_dlpack_exchange_api__") X(exchange, "__dlpack_c_exchange_api__") X(dlpack, "__dlpack__")              \
    X(dlpack_device, "__dlpack_device__") X(torch_dispatch, "__torch_dispatch__") X(collect, "collect") X(device, "device")       \
    X(event, "event") X(fields, "_fields") X(forget_until, "_forget_until") X(go_on, "_go_on") X(trim, "_trim")                   \
    X(next_stream, "next_stream") X(passed, "passed") X(policy, "policy") X(recording, "recording") X(registry, "_registry")                                \
    X(requires_grad, "requires_grad") X(serial, "serial") X(submission, "submission") X(traits, "traits")                         \
    X(written_by, "written_by")

/* Functions and objects of Python's. */
#define HELPERS(X)                                                                                                                \
    X(as_stream) X(async_on) X(borrowed) X(call) X(dropped) X(ended) X(inside) X(left) X(left_imported) X(running) X(site_of)     \
    X(start) X(submitting) X(sync) X(sync_on) X(tile) X(waited)

/* Numbers of Python's. */
#define CONSTANTS(X)                                                                                                              \
    X(KEYED_COMPUTED) X(KEYED_NOT) X(KEYED_SIGNED) X(KEYED_TRAITS) X(MANY) X(MARKS_KEPT) X(MUCH) X(READERS_KEPT)

typedef struct {
    const char *class_name, *attribute;
    PyObject *name;
    PyTypeObject *owner; /* NULL until `prepare` was given the class */
    Py_ssize_t offset;
} Slot;

#define DECLARE_SLOT(type, slot) extern Slot type##_##slot;
SLOTS(DECLARE_SLOT)
RECALLED_SLOTS(DECLARE_SLOT)
#define RECIPE_FIELD(number, name) RECIPE_##number,
enum { RECIPE(RECIPE_FIELD) RECIPE_FIELDS };

#define NAME_FIELD(field, text) PyObject *field;
extern struct Names {
    NAMES(NAME_FIELD)
} names;

#define HELPER_FIELD(helper) PyObject *helper;
extern struct Helpers {
    HELPERS(HELPER_FIELD)
} helpers;

#define CONSTANT_FIELD(constant) long constant;
extern struct Constants {
    CONSTANTS(CONSTANT_FIELD)
} constants;

/* The attribute, borrowed; NULL, and no exception, if it is not set or the object is no instance of the very class. */
static inline PyObject *held(PyObject *object, const Slot *slot)
{
    return Py_TYPE(object) == slot->owner ? *(PyObject **)((char *)object + slot->offset) : NULL;
}

/* Set an attribute of an instance of the very class; the reference to `value` is taken over, NULL deletes. */
static inline void put(PyObject *object, const Slot *slot, PyObject *value)
{
    PyObject **field = (PyObject **)((char *)object + slot->offset), *old = *field;
    *field = value;
    Py_XDECREF(old);
}

/* Any object's attribute, a new reference; NULL with an exception. */
static inline PyObject *get(PyObject *object, const Slot *slot)
{
    PyObject *value = held(object, slot);
    return value != NULL ? Py_NewRef(value) : PyObject_GetAttr(object, slot->name);
}

int as_pointer(PyObject *value, void *where);
/* Find where the instances of a class have the attribute; 0 with an exception. */
int find_slot(PyObject *class, Slot *slot);

/* The attribute of an instance of the class or of one derived from it, which has it as it is; borrowed. */
static inline PyObject **field(PyObject *object, const Slot *slot)
{
    return (PyObject **)((char *)object + slot->offset);
}

/* The value of an int that is at least 0 and below 2^60, as nearly all are that a kernel gets; 0, and no exception, of any other. */
static inline int small_int(PyObject *value, uint64_t *where)
{
#if PY_VERSION_HEX < 0x030F0000 && PYLONG_BITS_IN_DIGIT == 30
    if (!PyLong_CheckExact(value))
        return 0;
#if PY_VERSION_HEX >= 0x030C0000
    const digit *digits = ((PyLongObject *)value)->long_value.ob_digit;
    uintptr_t tag = ((PyLongObject *)value)->long_value.lv_tag, size = (tag & 3) != 2 ? tag >> 3 : 3;
#else
    const digit *digits = ((PyLongObject *)value)->ob_digit;
    size_t size = (size_t)Py_SIZE(value);
#endif
    if (size > 2)
        return 0;
    *where = size == 2 ? digits[0] | (uint64_t)digits[1] << 30 : size == 1 ? digits[0] : 0;
    return 1;
#else
    (void)value, (void)where;
    return 0;
#endif
}

/* The int that an object of the very class has there; all bits if that is not known. */
static inline uint64_t number(PyObject *object, const Slot *slot)
{
    PyObject *value = held(object, slot);
    uint64_t known;
    return value != NULL && small_int(value, &known) ? known : UINT64_MAX;
}

/* A bare object of a class, whose attributes are set next. */
static inline PyObject *instance(const Slot *slot)
{
    return slot->owner->tp_alloc(slot->owner, 0);
}

/* _launcher.c */
enum { LAUNCHED = 0, SLOW = -1, FAILED = -2 };
enum Kind { TENSOR = 'T', PARTITION = 'P', SCALAR = 'S', ABSENT = '-' }; /* of an argument; the last is not passed */

typedef struct {
    PyObject_HEAD
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra);
    int (*current)(void **context);
    int (*record)(void *event, void *stream); /* this and the next may be NULL */
    int (*query)(void *event);
    int (*wait)(void *stream, void *event, unsigned flags); /* may be NULL */
    int not_ready; /* what `query` says of an event that has not passed */
    double spin_s;
    void *context, *function;
    unsigned grid[3], block[3], shared_bytes;
    Py_ssize_t count;    /* of arguments */
    PyObject *kinds;     /* bytes, one for each argument: its Kind */
    PyObject *uses;      /* bytes, one for each argument: READ and WRITTEN */
    PyObject *slots;     /* bytes, one for each parameter that is from the arguments: its code in the module struct */
    PyObject *rest;      /* bytes, or NULL: the parameters behind these, of eight bytes each, which are always the same */
    PyObject *maps;      /* a tuple, or NULL: of each tensor map behind these the number of the argument, and a dict of maps */
} Launcher;

/* An event to be recorded right behind a launch, and the serial of the mark that it is to be. */
typedef struct {
    PyObject *serial;
    void *event;
    int code; /* the driver's, of the recording */
} Ending;

enum { MOST_SLOTS = 512, MOST_VIEWS = 64, MOST_MAPS = 8, MAP_BYTES = 128 };

typedef struct {
    _Alignas(64) char bytes[MAP_BYTES];
} Map;

/* What a kernel gets of a tensor, or of a partition's, a new reference; NULL with an exception. */
PyObject *flat_of(char kind, PyObject *argument);
/* The parameters of all arguments, in slots of zeros, and if asked for the first slot of each argument; 0, perhaps with an exception, if
 * they are not what the kernel takes. */
int pack_all(Launcher *self, PyObject *const *arguments, uint64_t *values, Py_ssize_t *firsts);
/* How many tensor maps there are; of which argument one is; that of what a kernel gets of a tensor, or 0, perhaps with an exception. */
Py_ssize_t maps_of(const Launcher *self);
Py_ssize_t mapped(const Launcher *self, Py_ssize_t number);
int copy_map(Launcher *self, Py_ssize_t number, PyObject *flat, Map *map);

/* LAUNCHED; SLOW, or the driver's code of the launch, if nothing was done; FAILED with an exception. */
int launch(Launcher *self, PyObject *stream, PyObject *arguments, PyObject *label, Ending *ending);
Launcher *launcher_behind(PyObject *native); /* borrowed; NULL if it is no `Launcher.launch` */
extern PyTypeObject *launcher_type;

/* A piece of memory that work uses. */
enum { READ = 1, WRITTEN = 2 };

typedef struct {
    PyObject *storage, *reads; /* owned */
    unsigned uses;
} View;

/* A launch, put together: the memory that it uses, `count` pieces, its parameters and tensor maps. */
typedef struct {
    View views[MOST_VIEWS];
    int count;
    uint64_t values[MOST_SLOTS];
    Map maps[MOST_MAPS];
} Work;

/* Whether anything can be launched in the stream from this thread. */
int is_usable(Launcher *self, PyObject *stream);
/* One more piece of memory, for which the stream waits; 0, perhaps with an exception, if Python has to see to that. */
int add_view(Launcher *self, Work *work, PyObject *storage, unsigned uses, PyObject *stream);
/* Launch, and remember that: as `launch`. And what is to be done whatever came of it, with the code, which it gives. */
int submit_work(Launcher *self, PyObject *stream, Work *work, PyObject *label, Ending *ending);
int end_work(Work *work, int code);

/* Let the stream wait for those who use the memory on other streams, so that work in it may; 0 if Python has to see to that, -1
 * with an exception. */
int clear_way(Launcher *self, View *view, PyObject *stream);
/* Remember the use (stream, serial) of all memory, as ExecutionContext.note does; 0 with an exception if that fails. All of it is
 * remembered that can be: the work has been submitted. */
int note(View *views, int count, PyObject *stream, PyObject *serial);
/* Remember the name of the work, as `Timeline.submitted` does; 0 with an exception. */
int note_name(PyObject *stream, PyObject *serial, PyObject *label);
PyObject *make_launcher_type(void);

/* _marks.c: events recorded in a stream, with their serials */
typedef struct {
    PyObject_HEAD
    long long serial;
    PyObject *event, *pool; /* a list, where the event goes back to */
    Launcher *launcher;     /* one of the same device */
} Mark;

/* Take a stream's lock, if nobody has it; 0, perhaps with an exception, if somebody has. Let it go, whatever has happened. */
int lock_stream(PyObject *lock);
void unlock_stream(PyObject *lock);
/* Append to a deque, which is what lists of a stream are; 0 with an exception. */
int append(PyObject *deque, PyObject *item);
/* The last event of a stream's pool, or a new one, a new reference; NULL, perhaps with an exception. */
PyObject *take_event(PyObject *stream, PyObject *pool);
/* The serial of a mark, of this module or of Python's; -1 with an exception. And its event, a new reference. */
long long serial_of(PyObject *mark);
PyObject *event_of(PyObject *mark);
/* Under the stream's lock, before an event is recorded, the serial that its mark is to have, a new reference: what other threads submit
 * from then on has a later one. Once it has been recorded, the mark that says so. NULL with an exception. */
PyObject *begin_mark(PyObject *stream);
Mark *append_mark(PyObject *stream, Launcher *launcher, PyObject *event, PyObject *serial);
/* A launcher of the stream's device, borrowed; NULL, and no exception, if none is known. */
Launcher *launcher_at(PyObject *stream);
/* Whether the event has passed, which is polled for so long at most; -1, and no exception, if that is not known. */
int mark_passed(Mark *self, double seconds);
PyObject *make_mark_type(void);

/* _waits.c */
/* A mark at the end of a stream, a new reference; NULL, perhaps with an exception, if Python has to make it. */
PyObject *mark_end(PyObject *stream, Launcher *launcher);
/* Whether all that is submitted to the stream from now on is known to run behind a moment of another. */
int is_behind(PyObject *stream, PyObject *other, PyObject *serial);
/* Let it; 0, perhaps with an exception, if Python has to see to that. */
int wait_for(Launcher *launcher, PyObject *stream, PyObject *other, PyObject *serial);

/* _build.c */
/* The plan for such arguments, if it is known, a new reference; NULL, and no exception. As `Form.plan`, which makes it. */
PyObject *known_plan(PyObject *form, PyObject *arguments, PyObject *options);
/* The form that a kernel has for such arguments, borrowed from the kernel, if it is known and nothing has to be looked at but the
 * types; NULL, and no exception. */
PyObject *known_form(PyObject *kernel, PyObject *arguments);
/* Cut what a launch writes into tiles of a shape, where that was done before to such arguments; 0, and no exception, if Python has to. */
int tile(PyObject *op, PyObject *shape);
/* What `site_of` says of the code that is running, a new reference; NULL with an exception. */
PyObject *current_site(void);
PyObject *make_calls_type(void);

/* _program.c */
enum { LAUNCH, GRAPH, COPY, FILL, FIELDS = 12 }; /* the kinds of steps, and how many numbers one has */
enum { MOST_ADDRESSES = 128 };
/* Whether it is a program that runs on other memory; which it does in a stream, given the addresses: LAUNCHED, SLOW if nothing was done, the
 * driver's code, or FAILED with an exception. */
int is_movable(PyObject *object);
int run_at(PyObject *program, const uint64_t *addresses, Py_ssize_t known, void *stream);
PyObject *make_program_type(void);

/* _imports.c */
/* The tensor over the elements that an array has from an address on, behind what its library has submitted to a stream, which is there
 * as long as the object is, or else is marked now. It is `layout`'s, which is a Layout. `kept`: whether it shall be found again while
 * it lives. A new reference; NULL, perhaps with an exception, if Python has to see to that. */
PyObject *imported(PyObject *array, uint64_t address, PyObject *layout, PyObject *stream, int lasts, int kept);
/* The tensor that begins at an address, somewhere in a storage that begins at `base`; NULL, perhaps with an exception. */
PyObject *new_tensor(PyObject *storage, uint64_t address, uint64_t base, PyObject *layout);
/* As `Device.let_go`, which counts by itself; 0 with an exception. */
int let_others_go(PyObject *device, uint64_t nbytes);

/* _memory.c */
/* Tensors and new ones behind them, as `new_tensors` of _launch.pyi; NULL, and no exception, if Python has to make them. */
PyObject *new_bases(PyObject *tensors, PyObject *new, PyObject *stream);
/* `__del__` of Storage, and of Imported, a new reference to a tuple. */
PyObject *make_finalizers(void);
extern PyMethodDef memory_functions[];

/* _exchange.c */
/* The tensor over an array of another library's on a GPU, a new reference; NULL, perhaps with an exception, if it is no such array, or
 * anything about it is unusual. */
PyObject *array_as_tensor(PyObject *array);
/* What an array has in common with others that look alike, a new reference to bytes, and its address; Py_None if it is no such array, or has
 * no elements; NULL with an exception. */
PyObject *likeness(PyObject *array, uint64_t *address);
extern PyMethodDef exchange_functions[];

/* _recall.c */
/* What tells a call from others, see `key` in _launch.pyi: a new reference, None where anything is unusual; NULL with an exception. */
PyObject *key_of(PyObject *function, PyObject *args, PyObject *kwargs, PyObject *plain, PyObject *tensors);
extern PyMethodDef recall_functions[];

/* _repeat.c */
extern PyMethodDef repeat_functions[];

/* _recalled.c */
PyObject *make_recalls_type(void);
extern PyMethodDef recalled_functions[];

/* _recipe.c */
int are_launches(PyObject *object);
/* Make launches as `submit` of _launch.pyi does: how many were made, of how many, and the serial, or NULL; -1 with an exception. */
Py_ssize_t submit_launches(PyObject *launches, PyObject *bases, PyObject *stream, PyObject *seconds, PyObject **serial,
                           Py_ssize_t *count);
PyObject *make_launches_type(void);

/* _submit.c */
/* What is behind a submission, owned: a mark and its serial; or where Python recorded that, the serial alone. */
typedef struct {
    Mark *mark;
    PyObject *serial;
} Submitted;

/* Make a last launch, `go(what, more, stream, ending)`, and record the event behind it in one go, under the stream's lock. 1; 0 if nothing
 * was done; -1 with an exception. Neither mark nor serial if the launch was made, and Python has to record the event. */
int submit_marked(Launcher *launcher, PyObject *stream, int (*go)(void *what, PyObject *more, PyObject *stream, Ending *ending),
                  void *what, PyObject *more, Submitted *submitted);
/* Whether this thread is in the middle of a submission, or that cannot be told. */
int is_submitting(void);
/* The stream that is meant, tilekit's own or another library's on the op's device, a new reference; NULL, perhaps with an exception that
 * nobody is to catch, if it is none. */
PyObject *as_stream(PyObject *op, PyObject *what);
/* The next stream of the device's policy; NULL with an exception. */
PyObject *next_stream(PyObject *device);
/* Call what a method leaves to Python. */
PyObject *otherwise(PyObject *helper, PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords);
/* The future of an op that was submitted to the end, a new reference; NULL with an exception. */
PyObject *new_future(PyObject *op, PyObject *stream, PyObject *serial);
/* Whether the work has passed, which is polled for. */
int is_over(Submitted *submitted, PyObject *stream, double seconds);
PyObject *make_runs_type(void);
extern PyMethodDef submit_functions[];

#pragma GCC visibility pop
#endif

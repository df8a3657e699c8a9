// node_modules/preact/dist/preact.mjs
var n$1;
var t$2;
var r$2;
var u$3;
var i$2;
var f$3;
var o$3;
var e$2;
var l$2;
var c$5;
var a$4;
var s$3;
var h$3 = Symbol.for("pv");
var p$3 = {};
var y$4 = [];
var v$2 = /^m(i|n|o|s|text|space)$/;
var w$3 = Array.isArray;
var d$3 = y$4.slice;
var _$2 = Object.assign;
function g$3(n) {
	n && n.parentNode && n.remove();
}
function k$3(n, t, r) {
	var u, i, f, o = {}, e = arguments.length;
	for (f in t) "key" == f ? u = t[f] : "ref" == f && "function" != typeof n ? i = t[f] : o[f] = t[f];
	return e > 2 && (o.children = e > 3 ? d$3.call(arguments, 2) : r), m$3(n, o, u, i, null);
}
function m$3(r, u, i, f, o) {
	var e = {
		type: r,
		props: u,
		key: i,
		ref: f,
		__k: null,
		__: null,
		__b: 0,
		__e: null,
		__c: null,
		constructor: h$3,
		__v: o || ++t$2,
		__i: -1,
		__u: 0
	};
	return !o && n$1.vnode && n$1.vnode(e), e;
}
function $(n) {
	return n.children;
}
function x$2(n, t) {
	this.props = n, this.context = t, this.__g = 0;
}
function S$1(n, t) {
	if (null == t) return n.__ && S$1(n.__, n.__i + 1);
	for (var r; t < n.__k.length; t++) if ((r = n.__k[t]) && r.__e) return r.__e;
	return "function" != typeof n.type || n.props.__P ? null : S$1(n);
}
function C$2(t) {
	var r, u = t.__v, i = u.__e, f = [], o = [], e = t.__P;
	e && ((r = _$2({ constructor: h$3 }, u)).__v = u.__v + 1, n$1.vnode && n$1.vnode(r), z$1(e, r, u, t.__n, e.namespaceURI, 32 & u.__u ? [i] : null, f, i || S$1(u), 32 & u.__u, o), r.__v = u.__v, r.__.__k[r.__i] = r, E$2(f, r, o), u.__ = u.__e = null, r.__e != i && j$2(r));
}
function j$2(n) {
	if ((n = n.__) && n.__c && !n.props.__P) return n.__e = null, n.__k.some(function(t) {
		return t && (n.__e = t.__e);
	}), j$2(n);
}
function L(t) {
	(8 & t.__g || (t.__g |= 8, u$3.push(t), f$3++)) && i$2 == n$1.debounceRendering || ((i$2 = n$1.debounceRendering) || queueMicrotask)(H);
}
function H() {
	try {
		for (var n, t = 1; u$3.length;) u$3.length > t && u$3.sort(o$3), n = u$3.shift(), t = u$3.length, 8 & n.__g && C$2(n);
	} finally {
		(f$3 = u$3.length) && (i$2 || queueMicrotask)(H);
	}
}
function I(n, t, r, u, i, f, o, e, l, c, a) {
	var s, h, v, w, d, _, g = u.__k || y$4, k = t.length;
	for (l = q(r, t, g, l, k), s = 0; s < k; s++) null != (v = r.__k[s]) && (h = ~v.__i && g[v.__i] || p$3, v.__i = s, _ = z$1(n, v, h, i, f, o, e, l, c, a), w = v.__e, (h.ref != v.ref || 8 & h.__u) && (h.ref && G$1(h.ref, null, v, h), v.ref && a.push(v.ref, v.__c || w, v)), d = d || w, 4 & v.__u ? (l = A$3(v, l, n, !h.__v), h.__e && (h.__e = null)) : "function" == typeof v.type && void 0 !== _ ? l = _ : w && (l = w.nextSibling), v.__u &= -21);
	return r.__e = d, l;
}
function q(n, t, r, u, i) {
	var f, o, e, l, c, a, s, p, y, v = r.length, d = v, _ = 0, g = 0, k = n.__k = Array(i);
	for (f = 0; f < i; f++) null != (o = t[f]) && "boolean" != typeof o && "function" != typeof o ? ("object" != typeof o || o.constructor === String ? o = k[f] = m$3(null, o) : w$3(o) ? o = k[f] = m$3($, { children: o }) : o.constructor === h$3 && o.__b ? o = k[f] = m$3(o.type, o.props, o.key, o.ref, o.__v) : k[f] = o, l = f + _, o.__ = n, o.__b = n.__b + 1, e = null, ~(c = o.__i = P$1(o, r, l, d)) && (d--, (e = r[c]) && (e.__u |= 2)), e && e.__v ? (o.__u |= 16, c == l - 1 ? _-- : c == l + 1 ? _++ : c != l && (c > l ? _-- : _++, g = 1)) : (~c || (i > v ? _-- : i < v && _++), "function" != typeof o.type && (o.__u |= 4))) : k[f] = null;
	if (g) {
		for (a = [], s = [], f = 0; f < i; f++) if ((o = k[f]) && 16 & o.__u) {
			for (_ = 0, p = a.length; _ < p;) a[y = _ + p >> 1] < o.__i ? _ = y + 1 : p = y;
			a[_] = o.__i, s[f] = _ + 1;
		}
		for (_ = a.length; f--;) s[f] && (s[f] == _ ? _-- : k[f].__u |= 4);
	}
	if (d) for (f = 0; f < v; f++) !(e = r[f]) || 2 & e.__u || (e.__e == u && (u = S$1(e)), J(e, e));
	return u;
}
function A$3(n, t, r, u) {
	var i, f, o, e;
	if ("function" == typeof n.type) {
		if (n.props.__P) return t;
		if (i = n.__k) for (f = 0; f < i.length; f++) i[f] && (i[f].__ = n, t = A$3(i[f], t, r, !1));
		return t;
	}
	for (t && !t.parentNode && (t = S$1(n)) && !t.parentNode && (t = null), o = n.__e, e = t; e && 8 == e.nodeType;) e = e.nextSibling;
	for (o != e && (!u && r.moveBefore && o.parentNode ? r.moveBefore(o, t) : r.insertBefore(o, t || null)), t = o; (t = t && t.nextSibling) && 8 == t.nodeType && !t.data.startsWith("$s"););
	return t;
}
function P$1(n, t, r, u) {
	var i, f = n.key, o = n.type, e = t[r], l = e && !(2 & e.__u);
	if (null === e && null == f || l && f == e.key && o == e.type) return r;
	if (u > (l ? 1 : 0)) {
		for (i = r - 1; i >= 0; i--) if ((e = t[i]) && !(2 & e.__u) && f == e.key && o == e.type) return i;
		for (i = r + 1; i < t.length; i++) if ((e = t[i]) && !(2 & e.__u) && f == e.key && o == e.type) return i;
	}
	return -1;
}
function T$1(n, t, r) {
	r ??= "", "-" == t[0] ? n.setProperty(t, r) : n[t] = r;
}
function N(n, t, r, u, i) {
	var f, o;
	if ("style" == t) if ("string" == typeof r) n.style.cssText = r;
	else {
		if ("string" == typeof u && (n.style.cssText = u = ""), u) for (t in u) r && t in r || T$1(n.style, t);
		if (r) for (t in r) u && r[t] == u[t] || T$1(n.style, t, r[t]);
	}
	else if ("o" == t[0] && "n" == t[1]) "function" != typeof r && (r = null), "function" != typeof u && (u = null), (n.__e || (n.__e = {}))[t] = r, r && u || (o = a$4[t] || (a$4[t] = V(t)), (n.__a || (n.__a = {}))[t] = c$5, f = t != (t = t.replace(l$2, "$1")), (t = t.slice(2))[0] < "a" && (t = t.toLowerCase()), r ? n.addEventListener(t, o, f) : n.removeEventListener(t, o, f));
	else {
		if ("http://www.w3.org/2000/svg" == i) t = t.replace(/xlink(H|:h)/, "h").replace(/sName$/, "s");
		else if ("width" != t && "height" != t && "href" != t && "list" != t && "form" != t && "tabIndex" != t && "download" != t && "rowSpan" != t && "colSpan" != t && "role" != t && "popover" != t && t in n) try {
			n[t] = null == r ? "" : r;
			return;
		} catch (n) {}
		if ("function" == typeof r) return;
		null == r || !1 === r && "-" != t[4] ? n.removeAttribute(t) : n.setAttribute(t, "popover" == t && 1 == r ? "" : r);
	}
}
function V(t) {
	return function(r) {
		var u = this.__e;
		if (u) {
			if (u = u[t], null == r[e$2]) r[e$2] = c$5++;
			else if (r[e$2] < this.__a[t]) return;
			return u(n$1.event ? n$1.event(r) : r);
		}
	};
}
function z$1(t, r, u, i, f, o, e, l, c, a) {
	var s, p, v, d, k, b, m, M, C, j, L, H, q, A, O, P, T, N, V = r.type;
	if (r.constructor !== h$3) return null;
	128 & u.__u && (c = 32 & u.__u, s = u.__c.__z) && (r.__u |= c, p = o = [], 8 == s.nodeType ? l = B$2(s, o) : o.push(s), l = o[0] || l), (s = n$1.__b) && s(r);
	n: if ("function" == typeof V) {
		v = e.length;
		try {
			if (M = r.props, C = (s = V.prototype) && s.render, j = (s = V.contextType) && i[s.__c], L = s ? j ? j.props.value : s.__ : i, (d = u.__c) ? (r.__c = d, 2 & d.__g && (d.__g |= 1)) : (C ? r.__c = d = new V(M, L) : (r.__c = d = new x$2(M, L), d.constructor = V, d.render = K$1), j && j.sub(d), d.state || (d.state = {}), d.__n = i, d.__g |= 8, d.__h = [], d.__k = []), C && (d.__s || (d.__s = d.state), V.getDerivedStateFromProps && (d.__s == d.state && (d.__s = _$2({}, d.__s)), _$2(d.__s, V.getDerivedStateFromProps(M, d.__s)))), k = d.props, b = d.state, d.__v = r, u.__c) {
				if (M !== k && C && !V.getDerivedStateFromProps && d.componentWillReceiveProps && d.componentWillReceiveProps(M, L), r.__v == u.__v && !(8 & d.__g) || !(4 & d.__g) && d.shouldComponentUpdate && !1 === d.shouldComponentUpdate(M, d.__s, L)) {
					r.__v != u.__v && (d.props = M, d.state = d.__s, d.__g &= -9), r.__e = u.__e, r.__k = u.__k, r.__k.some(function(n) {
						n && (n.__ = r);
					}), y$4.push.apply(d.__h, d.__k), d.__k = [], d.__h.length && e.push(d), l = S$1(u);
					break n;
				}
				d.componentWillUpdate && d.componentWillUpdate(M, d.__s, L), C && d.componentDidUpdate && d.__h.push(function() {
					d.componentDidUpdate(k, b, m);
				});
			} else C && !V.getDerivedStateFromProps && d.componentWillMount && d.componentWillMount(), C && d.componentDidMount && d.__h.push(d.componentDidMount);
			d.context = L, d.props = M, d.__P = t, d.__g &= -5, H = n$1.__r, q = C ? 25 : 0;
			do
				d.__g &= -9, H && H(r), s = d.render(d.props, d.state = d.__s, d.context);
			while (8 & d.__g && ++q < 25);
			C && (y$4.push.apply(d.__h, d.__k), d.__k = []), d.state = d.__s, d.getChildContext && (i = _$2({}, i, d.getChildContext())), C && u.__c && d.getSnapshotBeforeUpdate && (m = d.getSnapshotBeforeUpdate(k, b)), A = s && s.type === $ && null == s.key ? s.props.children : s, M.__P && (s = l, f = (t = M.__P).namespaceURI, c = o = null, u.props && u.props.__P != t && (u.__k.some(function(n) {
				n && J(n, n);
			}), u.__k = null), l = u.__k ? S$1(u, 0) : null), l = I(t, w$3(A) ? A : [A], r, u, i, f, o, e, l, c, a), M.__P && (r.__e = null, l = s), r.__u &= -161, p && p.some(g$3), d.__h.length && e.push(d), 1 & d.__g && (d.__g &= -4);
		} catch (t) {
			if (e.length = v, r.__v = null, c || o) if (t && t.then) {
				if (r.__u |= 128 | c, o) {
					for (~(T = o.indexOf(l || void 0)) || (T = o.length); (N = o[T - 1]) && 8 == N.nodeType;) T--;
					for (; T < o.length; T++) if (N = o[T]) if (o[T] = null, O) {
						if (N == P) break;
					} else {
						if (8 != N.nodeType) break;
						N.data.startsWith("$s") && (P = B$2(O = N));
					}
				}
				if (!O) {
					for (; l && 8 == l.nodeType && l.nextSibling;) l = l.nextSibling;
					O = l;
				}
				(s = B$2(O = r.__c.__z || (r.__c.__z = O))) ? (r.__e = O, l = s) : r.__e = l, l = l && l.nextSibling;
			} else o && o.some(g$3);
			else r.__e = u.__e;
			r.__k || (r.__k = u.__k || []), t && t.then || D$2(r), n$1.__e(t, r, u);
		}
	} else l = r.__e = F$2(u.__e, r, u, i, f, o, e, c, a, t);
	return (s = n$1.diffed) && s(r), l;
}
function B$2(n, t) {
	if (n && 8 == n.nodeType && n.data.startsWith("$s")) for (var r = 1; n = n.nextSibling;) {
		if (8 == n.nodeType) {
			if (n.data.startsWith("$s")) r++;
			else if (n.data.startsWith("/$s") && !--r) return n;
		}
		t && t.push(n);
	}
}
function D$2(n) {
	n && (n.__c && (n.__c.__g |= 4), n.__k && n.__k.some(D$2));
}
function E$2(t, r, u) {
	for (var i = 0; i < u.length;) G$1(u[i++], u[i++], u[i++]);
	n$1.__c && n$1.__c(r, t), t.some(function(r) {
		try {
			t = r.__h, r.__h = [], t.some(function(n) {
				n.call(r);
			});
		} catch (t) {
			n$1.__e(t, r.__v);
		}
	});
}
function F$2(t, r, u, i, f, o, e, l, c, a) {
	var s, h, y, _, k, b, m, M, $ = u.props || p$3, x = r.props, C = r.type;
	if ("svg" == C ? f = "http://www.w3.org/2000/svg" : "math" == C ? f = "http://www.w3.org/1998/Math/MathML" : f || (f = "http://www.w3.org/1999/xhtml"), o) {
		for (s = 0; s < o.length; s++) if ((k = o[s]) && (C ? k.localName == C : 3 == k.nodeType)) {
			t = k, o[s] = null;
			break;
		}
	}
	if (!t) {
		if (M = a.ownerDocument || document, !C) return M.createTextNode(x);
		t = M.createElementNS(f, C, x.is ? x : a), l && (n$1.__m && n$1.__m(r, o), l = !1), o = null;
	}
	if (C) {
		if (a = "template" == C && t.content || t, o = "textarea" == C && null != x.defaultValue ? null : o && d$3.call(a.childNodes), !l && o) for ($ = {}, s = 0; s < t.attributes.length; s++) $[(k = t.attributes[s]).name] = k.value;
		for (s in $) k = $[s], "dangerouslySetInnerHTML" == s ? y = k : "children" == s || s in x || "value" == s && "defaultValue" in x || "checked" == s && "defaultChecked" in x || N(t, s, null, k, f);
		for (s in x) k = x[s], "children" == s ? _ = k : "dangerouslySetInnerHTML" == s ? h = k : "value" == s ? b = k : "checked" == s ? m = k : l && "function" != typeof k || $[s] === k || N(t, s, k, $[s], f);
		h ? (l || y && (h.__html == y.__html || h.__html == t.innerHTML) || (t.innerHTML = h.__html), r.__k = []) : (y && (t.textContent = ""), ("foreignObject" == C || "http://www.w3.org/1998/Math/MathML" == f && v$2.test(C)) && (f = "http://www.w3.org/1999/xhtml"), I(a, w$3(_) ? _ : [_], r, u, i, f, o, e, o ? o[0] : u.__k && S$1(u, 0), l, c), o && o.some(g$3)), l && "textarea" != C || (s = "value", "progress" == C && null == b ? t.removeAttribute(s) : null == b || b === t[s] && ("progress" != C || b) || N(t, s, b, $[s], f), s = "checked", null != m && m != t[s] && N(t, s, m, $[s], f));
	} else $ === x || l && t.data == x || (t.data = x);
	return t;
}
function G$1(t, r, u, i) {
	try {
		"function" == typeof t ? r ? r.__x = t(r) || 1 : i && (i = i.__c || i.__e) && (r = i.__x) && (i.__x = null, "function" == typeof r ? r() : t(null)) : t.current = r;
	} catch (t) {
		n$1.__e(t, u);
	}
}
function J(t, r, u) {
	var i, f, o, e;
	if (n$1.unmount && n$1.unmount(t), !(i = t.ref) || i.current && i.current != t.__e || G$1(i, null, r, t), i = t.__c) {
		if (i.componentWillUnmount) try {
			i.componentWillUnmount();
		} catch (t) {
			n$1.__e(t, r);
		}
		i.__P = i.__n = null;
	}
	if (i = t.__k) for (e = 0; e < i.length; e++) i[e] && J(i[e], r, "function" != typeof t.type || u && !t.props.__P);
	!u && (i = t.__c) && (i = i.__z) && (f = B$2(i, o = [])) && (i == t.__e && o.some(g$3), g$3(f), g$3(i)), u || g$3(t.__e), t.__e = t.__c = t.__ = null;
}
function K$1(n, t, r) {
	return this.constructor(n, r);
}
function Q(t, r) {
	var u, i, f, o;
	n$1.__ && n$1.__(t, r), 9 == r.nodeType && (r = r.documentElement), i = (u = t && 32 & t.__u) ? null : r.__k, r.__k = m$3($, { children: [t] }), f = [], o = [], z$1(r, r.__k, i || p$3, p$3, r.namespaceURI, i ? null : r.firstChild ? d$3.call(r.childNodes) : null, f, i ? i.__e : r.firstChild, u, o), E$2(f, r.__k, o), r.__k.props.children = null;
}
function U(n) {
	function t(n) {
		var r, u;
		return this.getChildContext || (r = /* @__PURE__ */ new Set(), (u = {})[t.__c] = this, this.getChildContext = function() {
			return u;
		}, this.shouldComponentUpdate = function(n) {
			this.props.value != n.value && r.forEach(function(n) {
				n.__g |= 4, L(n);
			});
		}, this.sub = function(n) {
			r.add(n);
			var t = n.componentWillUnmount;
			n.componentWillUnmount = function() {
				r.delete(n), t && t.call(n);
			};
		}), n.children;
	}
	return t.__c = "__cC" + s$3++, t.__ = n, t.Provider = (t.Consumer = function(n, t) {
		return n.children(t);
	}).contextType = t, t;
}
n$1 = { __e: function(n, t, r, u) {
	for (var i, o, e; t = t.__;) if ((i = t.__c) && !(1 & i.__g)) {
		i.__g |= 4;
		try {
			if ((e = (o = i.constructor) && o.getDerivedStateFromError) && i.setState(o.getDerivedStateFromError(n)), i.componentDidCatch && (i.componentDidCatch(n, u || {}), e = 1), e && 8 & i.__g) return void (i.__g |= 2);
		} catch (t) {
			n = t;
		}
	}
	throw f$3 = 0, n;
} }, t$2 = 0, r$2 = function(n) {
	return null != n && n.constructor === h$3;
}, x$2.prototype.setState = function(n, t) {
	var r = this.__s;
	r && r != this.state || (r = this.__s = _$2({}, this.state)), "function" == typeof n && (n = n(_$2({}, r), this.props)), n && (_$2(r, n), this.__v && (t && this.__k.push(t), L(this)));
}, x$2.prototype.forceUpdate = function(n) {
	this.__v && (this.__g |= 4, n && this.__h.push(n), L(this));
}, x$2.prototype.render = $, u$3 = [], f$3 = 0, o$3 = function(n, t) {
	return n.__v.__b - t.__v.__b;
}, e$2 = Symbol(), l$2 = /(PointerCapture)$|Capture$/i, c$5 = 0, a$4 = {}, s$3 = 0;
// node_modules/preact/hooks/dist/hooks.mjs
var t$1;
var r$1;
var u$2;
var i$1;
var o$2 = Object.is;
var f$2 = 0;
var c$4 = [];
var e$1 = [];
var a$3 = n$1;
var v$1 = a$3.__b;
var l$1 = a$3.__r;
var m$2 = a$3.diffed;
var h$2 = a$3.__c;
var s$2 = a$3.unmount;
var p$2 = a$3.__;
function y$3(n, t) {
	a$3.__h && a$3.__h(r$1, n, f$2 || t), f$2 = 0;
	var u = r$1.__H || (r$1.__H = {
		__: [],
		__h: []
	});
	return n >= u.__.length && u.__.push({}), u.__[n];
}
function d$2(n) {
	return f$2 = 1, _$1(G, n);
}
function _$1(n, u, i) {
	var f = y$3(t$1++, 2);
	if (f.t = n, !f.__c && (f.__ = [i ? i(u) : G(void 0, u), function(n) {
		var t = (f.__N || f.__)[0], r = f.t(t, n);
		o$2(t, r) || (f.__N = [r, f.__[1]], f.__c.setState({}));
	}], f.__c = r$1, !r$1.__f)) {
		r$1.__f = !0;
		var c = r$1.shouldComponentUpdate;
		r$1.shouldComponentUpdate = function(n, t, r) {
			var u = this.__H;
			if (!u) return !0;
			var i = !1, f = this.props != n;
			if (u.__.some(function(n) {
				n.__N && (i = !0, o$2(n.__[0], n.__N[0]) || (f = !0));
			}), c) {
				var e = c.call(this, n, t, r);
				return i ? e || f : e;
			}
			return !i || f;
		};
	}
	return f.__;
}
function A$2(n, u) {
	var i = y$3(t$1++, 3);
	!a$3.__s && E$1(i.__H, u) && (i.__P = !0, i.__ = n, i.u = u, r$1.__H.__h.push(i));
}
function F$1(n, u) {
	var i = y$3(t$1++, 4);
	!a$3.__s && E$1(i.__H, u) && (i.__P = !1, i.__ = n, i.u = u, r$1.__h.push(i));
}
function T(n) {
	return f$2 = 5, w$2(function() {
		return { current: n };
	}, []);
}
function w$2(n, r) {
	var u = y$3(t$1++, 7);
	return E$1(u.__H, r) && (u.__ = n(), u.__H = r), u.__;
}
function j$1(n) {
	var u = r$1.context[n.__c], i = y$3(t$1++, 9);
	return i.c = n, u ? (i.__ ?? (i.__ = !0, u.sub(r$1)), u.props.value) : n.__;
}
function P() {
	var n = y$3(t$1++, 11);
	if (!n.__) {
		for (var u = r$1.__v; !u.__m && u.__;) u = u.__;
		var i = u.__m || (u.__m = [0, 0]);
		n.__ = "P" + i[0] + "-" + i[1]++;
	}
	return n.__;
}
function g$2() {
	var n;
	do {
		for (; n = e$1.shift();) try {
			C$1(n);
		} catch (t) {
			a$3.__e(t, { __: (n = n.__P) && n.__v });
		}
		for (; n = c$4.shift();) {
			var t = n.__H;
			if (n.__P && t) try {
				t.__h.some(C$1), t.__h.some(D$1), t.__h = [];
			} catch (r) {
				t.__h = [], a$3.__e(r, n.__v);
			}
		}
	} while (e$1.length);
}
a$3.__b = function(n) {
	r$1 = null, v$1 && v$1(n);
}, a$3.__ = function(n, t) {
	n && t.__k && t.__k.__m && (n.__m = t.__k.__m), p$2 && p$2(n, t);
}, a$3.__r = function(n) {
	l$1 && l$1(n), t$1 = 0;
	var i = (r$1 = n.__c).__H;
	i && (u$2 == r$1 ? r$1.__h = [] : (i.__h.some(C$1), i.__h.some(D$1), t$1 = 0), i.__h = [], i.__.some(function(n) {
		n.__N && (n.__ = n.__N), n.u = n.__N = void 0;
	})), u$2 = r$1;
}, a$3.diffed = function(n) {
	m$2 && m$2(n);
	var t = n.__c;
	t && t.__H && (t.__H.__h.length && B$1(c$4.push(t)), t.__H.__.some(function(n) {
		n.u && (n.__H = n.u);
	})), u$2 = r$1 = null;
}, a$3.__c = function(n, t) {
	t.some(function(n) {
		try {
			n.__h.some(C$1), n.__h = n.__h.filter(function(n) {
				return !n.__ || D$1(n);
			});
		} catch (t) {
			n.__h = [function() {
				throw t;
			}];
		}
	}), h$2 && h$2(n, t);
}, a$3.unmount = function(n) {
	s$2 && s$2(n);
	var t, r, u = n.__c;
	u && u.__H && (u.__H.__.some(function(u) {
		try {
			if (u.__P && u.__c) {
				if (void 0 === r) {
					for (r = n.__; r && (!r.__c || !r.__c.__P);) r = r.__;
					r = r && r.__c;
				}
				u.__P = r, B$1(e$1.push(u));
			} else C$1(u);
		} catch (n) {
			t = n;
		}
	}), u.__H = void 0, t && a$3.__e(t, u.__v));
};
var k$2 = "function" == typeof requestAnimationFrame;
function z(n) {
	var t, r = function() {
		clearTimeout(u), k$2 && cancelAnimationFrame(t), setTimeout(n);
	}, u = setTimeout(r, 35);
	k$2 && (t = requestAnimationFrame(r));
}
function B$1(n) {
	1 != n && i$1 == a$3.requestAnimationFrame || ((i$1 = a$3.requestAnimationFrame) || z)(g$2);
}
function C$1(n) {
	var t = r$1, u = n.__c;
	"function" == typeof u && (n.__c = void 0, u()), r$1 = t;
}
function D$1(n) {
	var t = r$1;
	n.__c = n.__(), r$1 = t;
}
function E$1(n, t) {
	return !n || n.length != t.length || t.some(function(t, r) {
		return !o$2(t, n[r]);
	});
}
function G(n, t) {
	return "function" == typeof t ? t(n) : t;
}
// node_modules/@preact/signals-core/dist/signals-core.module.js
var i = Symbol.for("preact-signals");
function t() {
	if (!(v > 1)) {
		var i, t = !1;
		(function() {
			var i = c$3;
			c$3 = void 0;
			while (void 0 !== i) {
				var t = i.S;
				if (t.v === i.v) {
					for (var r = t.t; void 0 !== r; r = r.x) if (r.i === i.i) r.i = t.i;
				}
				i = i.o;
			}
		})();
		while (void 0 !== h$1) {
			var r = h$1;
			h$1 = void 0;
			s$1++;
			while (void 0 !== r) {
				var n = r.u;
				r.u = void 0;
				r.f &= -3;
				if (!(8 & r.f) && w$1(r)) try {
					r.c();
				} catch (r) {
					if (!t) {
						i = r;
						t = !0;
					}
				}
				r = n;
			}
		}
		s$1 = 0;
		v--;
		if (t) throw i;
	} else v--;
}
function r(i) {
	if (v > 0) return i();
	u$1 = ++e;
	v++;
	try {
		return i();
	} finally {
		t();
	}
}
var n;
var o$1 = void 0;
function f$1(i) {
	var t = o$1, r = n;
	o$1 = void 0;
	n = void 0;
	try {
		return i();
	} finally {
		o$1 = t;
		n = r;
	}
}
var h$1 = void 0;
var v = 0;
var s$1 = 0;
var e = 0;
var u$1 = 0;
var c$3 = void 0;
var a$2 = 0;
function d$1(i) {
	if (void 0 !== o$1) {
		var t = i.n;
		if (void 0 === t || t.t !== o$1) {
			t = {
				i: 0,
				S: i,
				p: o$1.s,
				n: void 0,
				t: o$1,
				e: void 0,
				x: void 0,
				r: t
			};
			if (void 0 !== o$1.s) o$1.s.n = t;
			o$1.s = t;
			i.n = t;
			if (32 & o$1.f) i.S(t);
			return t;
		} else if (-1 === t.i) {
			t.i = 0;
			if (void 0 !== t.n) {
				t.n.p = t.p;
				if (void 0 !== t.p) t.p.n = t.n;
				t.p = o$1.s;
				t.n = void 0;
				o$1.s.n = t;
				o$1.s = t;
			}
			return t;
		}
	}
}
function l(i, t) {
	this.v = i;
	this.i = 0;
	this.n = void 0;
	this.t = void 0;
	this.l = 0;
	this.W = null == t ? void 0 : t.watched;
	this.Z = null == t ? void 0 : t.unwatched;
	this.name = null == t ? void 0 : t.name;
}
l.prototype.brand = i;
l.prototype.h = function() {
	return !0;
};
l.prototype.S = function(i) {
	var t = this, r = this.t;
	if (r !== i && void 0 === i.e) {
		i.x = r;
		this.t = i;
		if (void 0 !== r) r.e = i;
		else f$1(function() {
			var i;
			null == (i = t.W) || i.call(t);
		});
	}
};
l.prototype.U = function(i) {
	var t = this;
	if (void 0 !== this.t) {
		var r = i.e, n = i.x;
		if (void 0 !== r) {
			r.x = n;
			i.e = void 0;
		}
		if (void 0 !== n) {
			n.e = r;
			i.x = void 0;
		}
		if (i === this.t) {
			this.t = n;
			if (void 0 === n) f$1(function() {
				var i;
				null == (i = t.Z) || i.call(t);
			});
		}
	}
};
l.prototype.subscribe = function(i) {
	var t = this;
	return x$1(function() {
		var r = t.value;
		f$1(function() {
			return i(r);
		});
	}, { name: "sub" });
};
l.prototype.valueOf = function() {
	return this.value;
};
l.prototype.toString = function() {
	return this.value + "";
};
l.prototype.toJSON = function() {
	return this.value;
};
l.prototype.peek = function() {
	var i = this;
	return f$1(function() {
		return i.value;
	});
};
Object.defineProperty(l.prototype, "value", {
	get: function() {
		var i = d$1(this);
		if (void 0 !== i) i.i = this.i;
		return this.v;
	},
	set: function(i) {
		if (i !== this.v) {
			if (s$1 > 100) throw new Error("Cycle detected");
			(function(i) {
				if (0 !== v && 0 === s$1) {
					if (i.l !== u$1) {
						i.l = u$1;
						c$3 = {
							S: i,
							v: i.v,
							i: i.i,
							o: c$3
						};
					}
				}
			})(this);
			this.v = i;
			this.i++;
			a$2++;
			v++;
			try {
				for (var r = this.t; void 0 !== r; r = r.x) r.t.N();
			} finally {
				t();
			}
		}
	}
});
function y$2(i, t) {
	return new l(i, t);
}
function w$1(i) {
	for (var t = i.s; void 0 !== t; t = t.n) if (t.S.i !== t.i || !t.S.h() || t.S.i !== t.i) return !0;
	return !1;
}
function b$1(i) {
	for (var t = i.s; void 0 !== t; t = t.n) {
		var r = t.S.n;
		if (void 0 !== r) t.r = r;
		t.S.n = t;
		t.i = -1;
		if (void 0 === t.n) {
			i.s = t;
			break;
		}
	}
}
function _(i) {
	var t = i.s, r = void 0;
	while (void 0 !== t) {
		var n = t.p;
		if (-1 === t.i) {
			t.S.U(t);
			if (void 0 !== n) n.n = t.n;
			if (void 0 !== t.n) t.n.p = n;
		} else r = t;
		t.S.n = t.r;
		if (void 0 !== t.r) t.r = void 0;
		t = n;
	}
	i.s = r;
}
function j(i, t) {
	l.call(this, void 0, t);
	this.x = i;
	this.s = void 0;
	this.g = a$2 - 1;
	this.f = 4;
}
j.prototype = new l();
j.prototype.h = function() {
	this.f &= -3;
	if (1 & this.f) return !1;
	if (32 == (36 & this.f)) return !0;
	this.f &= -5;
	if (this.g === a$2) return !0;
	this.g = a$2;
	this.f |= 1;
	if (this.i > 0 && !w$1(this)) {
		this.f &= -2;
		return !0;
	}
	var i = o$1;
	try {
		b$1(this);
		o$1 = this;
		var t = this.x();
		if (16 & this.f || this.v !== t || 0 === this.i) {
			this.v = t;
			this.f &= -17;
			this.i++;
		}
	} catch (i) {
		this.v = i;
		this.f |= 16;
		this.i++;
	}
	o$1 = i;
	_(this);
	this.f &= -2;
	return !0;
};
j.prototype.S = function(i) {
	if (void 0 === this.t) {
		this.f |= 36;
		for (var t = this.s; void 0 !== t; t = t.n) t.S.S(t);
	}
	l.prototype.S.call(this, i);
};
j.prototype.U = function(i) {
	if (void 0 !== this.t) {
		l.prototype.U.call(this, i);
		if (void 0 === this.t) {
			this.f &= -33;
			for (var t = this.s; void 0 !== t; t = t.n) t.S.U(t);
		}
	}
};
j.prototype.N = function() {
	if (!(2 & this.f)) {
		this.f |= 6;
		for (var i = this.t; void 0 !== i; i = i.x) i.t.N();
	}
};
Object.defineProperty(j.prototype, "value", { get: function() {
	if (1 & this.f) throw new Error("Cycle detected");
	var i = d$1(this);
	this.h();
	if (void 0 !== i) i.i = this.i;
	if (16 & this.f) throw this.v;
	return this.v;
} });
function O(i, t) {
	return new j(i, t);
}
function p$1(i) {
	var r = i.j;
	i.j = void 0;
	if ("function" == typeof r) {
		v++;
		var n = o$1;
		o$1 = void 0;
		try {
			r();
		} catch (t) {
			i.f &= -2;
			i.f |= 8;
			g$1(i);
			throw t;
		} finally {
			o$1 = n;
			t();
		}
	}
}
function g$1(i) {
	for (var t = i.s; void 0 !== t; t = t.n) t.S.U(t);
	i.x = void 0;
	i.s = void 0;
	p$1(i);
}
function S(i) {
	if (o$1 !== this) throw new Error("Out-of-order effect");
	_(this);
	o$1 = i;
	this.f &= -2;
	try {
		if (8 & this.f) g$1(this);
	} finally {
		t();
	}
}
function m$1(i, t) {
	this.x = i;
	this.j = void 0;
	this.s = void 0;
	this.u = void 0;
	this.f = 32;
	this.name = null == t ? void 0 : t.name;
	if (n) n.push(this);
}
m$1.prototype.c = function() {
	var i = this.S();
	try {
		if (8 & this.f) return;
		if (void 0 === this.x) return;
		var t = this.x();
		if ("function" == typeof t) this.j = t;
	} finally {
		i();
	}
};
m$1.prototype.S = function() {
	if (1 & this.f) throw new Error("Cycle detected");
	this.f |= 1;
	this.f &= -9;
	p$1(this);
	b$1(this);
	v++;
	var i = o$1;
	o$1 = this;
	return S.bind(this, i);
};
m$1.prototype.N = function() {
	if (!(2 & this.f)) {
		this.f |= 2;
		this.u = h$1;
		h$1 = this;
	}
};
m$1.prototype.d = function() {
	this.f |= 8;
	if (!(1 & this.f)) g$1(this);
};
m$1.prototype.dispose = function() {
	this.d();
};
function x$1(i, t) {
	var r = new m$1(i, t);
	try {
		r.c();
	} catch (i) {
		r.d();
		throw i;
	}
	var n = r.d.bind(r);
	n[Symbol.dispose] = n;
	return n;
}
// node_modules/@preact/signals/dist/signals.module.js
var h;
var p;
var m = "undefined" != typeof window && !!window.__PREACT_SIGNALS_DEVTOOLS__;
var g = [];
x$1(function() {
	h = this.N;
})();
function b(i, n) {
	n$1[i] = n.bind(null, n$1[i] || function() {});
}
function y$1(i) {
	if (p) {
		var n = p;
		p = void 0;
		n();
	}
	p = i && i.S();
}
function w(i) {
	var n = this, r = i.data, t = useSignal(r);
	t.name = "ReactiveDom";
	t.value = r;
	var e = w$2(function() {
		var i = n, r = n.__v;
		while (r = r.__) if (r.__c) {
			r.__c.__$f |= 4;
			break;
		}
		var o = O(function() {
			var i = t.value.value;
			return 0 === i ? 0 : !0 === i ? "" : i || "";
		}), e = O(function() {
			return !Array.isArray(o.value) && !r$2(o.value);
		}), u = x$1(function() {
			this.N = M$1;
			if (e.value) {
				var n = o.value;
				if (i.__v && i.__v.__e && 3 === i.__v.__e.nodeType) i.__v.__e.data = n;
			}
		}), c = n.__$u.d;
		n.__$u.d = function() {
			u();
			c.call(this);
		};
		return [e, o];
	}, []), u = e[0], c = e[1];
	return u.value ? c.peek() : c.value;
}
w.displayName = "ReactiveTextNode";
Object.defineProperties(l.prototype, {
	constructor: {
		configurable: !0,
		value: k$3($, null).constructor
	},
	type: {
		configurable: !0,
		value: w
	},
	props: {
		configurable: !0,
		get: function() {
			var i = this;
			return { data: { get value() {
				return i.value;
			} } };
		}
	},
	__b: {
		configurable: !0,
		value: 1
	}
});
b("__b", function(i, n) {
	y$1();
	if ("string" == typeof n.type) {
		var r, t = n.props;
		for (var f in t) if ("children" !== f) {
			var o = t[f];
			if (o instanceof l) {
				if (!r) n.__np = r = {};
				r[f] = o;
				t[f] = o.peek();
			}
		}
	}
	i(n);
});
b("__r", function(i, r) {
	i(r);
	if (r.type !== $) {
		y$1();
		var t, f = r.__c;
		if (f) {
			f.__$f &= -2;
			if (void 0 === (t = f.__$u)) f.__$u = t = function(i, n) {
				var r;
				x$1(function() {
					r = this;
				}, { name: n });
				r.c = i;
				return r;
			}(function(i) {
				return function() {
					var n;
					if (m) null == (n = this.y) || n.call(this);
					i.__$f |= 1;
					i.setState({});
				};
			}(f), "function" == typeof r.type ? r.type.displayName || r.type.name : "");
		}
		y$1(t);
	}
});
b("__e", function(i, n, r, t) {
	y$1();
	i(n, r, t);
});
b("diffed", function(i, n) {
	y$1();
	var r;
	if ("string" == typeof n.type && (r = n.__e)) {
		var t = n.__np, f = n.props, o = r.U;
		if (o) for (var e in o) {
			var u = o[e];
			if (!(void 0 === u || t && e in t)) {
				u.d();
				o[e] = void 0;
			}
		}
		if (t) {
			if (!o) {
				o = {};
				r.U = o;
			}
			for (var a in t) {
				var c = o[a], v = t[a];
				if (void 0 === c) {
					c = k$1(r, a, v, f);
					o[a] = c;
				} else c.o(v, f);
			}
		}
	}
	i(n);
});
function k$1(i, n, r, t) {
	var f = n in i && void 0 === i.ownerSVGElement, o = y$2(r);
	return {
		o: function(i, n) {
			o.value = i;
			t = n;
		},
		d: x$1(function() {
			this.N = M$1;
			var r = o.value.value;
			if (t[n] !== r) {
				t[n] = r;
				if (f) i[n] = r;
				else if (null != r && (!1 !== r || "-" === n[4])) i.setAttribute(n, r);
				else i.removeAttribute(n);
			}
		})
	};
}
b("unmount", function(i, n) {
	if ("string" == typeof n.type) {
		var r = n.__e;
		if (r) {
			var t = r.U;
			if (t) {
				r.U = void 0;
				for (var f in t) {
					var o = t[f];
					if (o) o.d();
				}
			}
		}
		var e = n.__np;
		if (e) {
			var u = n.props;
			for (var a in e) u[a] = e[a];
		}
		n.__np = void 0;
	} else {
		var c = n.__c;
		if (c) {
			c.__$f |= 8;
			var v = c.__$u;
			if (v) {
				c.__$u = void 0;
				v.d();
			}
		}
	}
	i(n);
});
b("__h", function(i, n, r, t) {
	if (t < 3) n.__$f |= 2;
	i(n, r, t);
});
x$2.prototype.shouldComponentUpdate = function(i, n) {
	if (this.__R) return !0;
	var r = this.__$u, t = r && void 0 !== r.s;
	for (var f in n) return !0;
	if (this.__f || "boolean" == typeof this.u && !0 === this.u) {
		var o = 2 & this.__$f;
		if (!(t || o || 4 & this.__$f)) return !0;
		if (1 & this.__$f) return !0;
	} else {
		if (!(t || 4 & this.__$f)) return !0;
		if (3 & this.__$f) return !0;
	}
	for (var e in i) if ("__source" !== e && i[e] !== this.props[e]) return !0;
	for (var u in this.props) if (!(u in i)) return !0;
	return !1;
};
function useSignal(i, n) {
	return w$2(function() {
		return y$2(i, n);
	}, []);
}
var A$1 = function(i) {
	queueMicrotask(function() {
		queueMicrotask(i);
	});
};
function F() {
	r(function() {
		var i;
		while (i = g.shift()) h.call(i);
	});
}
function M$1() {
	if (1 === g.push(this)) (n$1.requestAnimationFrame || A$1)(F);
}
// src/app.tsx
var AppContext = U(null);
/** The source, the state and the store that a view reads. */
function useApp() {
	const app = j$1(AppContext);
	const values = app.state.values.value;
	const index = Math.min(Number(values.store) || 0, app.stores.length - 1);
	const store = app.stores[index];
	const asked = Number(values.layer ?? NaN);
	const layer = store.layers.includes(asked) ? asked : store.layers[store.layers.length >> 1];
	return {
		...app,
		values,
		store,
		index,
		layer,
		go: app.state.go,
		href: app.state.href
	};
}
// node_modules/preact/jsx-runtime/dist/jsxRuntime.mjs
var f = Symbol.for("pv");
var o = 0;
Array.isArray;
function a$1(t, e, n, u, a, i) {
	e || (e = {});
	var c, l, p = e;
	if ("ref" in p && "function" != typeof t) for (l in p = {}, e) "ref" == l ? c = e[l] : p[l] = e[l];
	var s = {
		type: t,
		props: p,
		key: n,
		ref: c,
		__k: null,
		__: null,
		__b: 0,
		__e: null,
		__c: null,
		constructor: f,
		__v: --o,
		__i: -1,
		__u: 0
	};
	return (a || i) && (s.__source = a, s.__self = i), n$1.vnode && n$1.vnode(s), s;
}
// src/parts/link.tsx
/** A link to another state of the page: an ordinary address, followed without loading the page again. */
function Link({ to, children, current, class: name, title, label }) {
	const { go, href } = useApp();
	return /* @__PURE__ */ a$1("a", {
		href: href(to),
		class: name,
		title,
		"aria-label": label,
		"aria-current": current ? "page" : void 0,
		onClick: (event) => {
			if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
			event.preventDefault();
			go(to);
		},
		children
	});
}
// src/parts/store_picker.tsx
/** Chooses the store; with one store, says which. */
function StorePicker() {
	const { stores, store, index, go } = useApp();
	const facts = `${store.model ?? "no model"} · ${store.rows.toLocaleString("en")} rows · ${store.layers.length} layers`;
	return /* @__PURE__ */ a$1("span", {
		class: "store",
		title: `${store.address}\n${facts}`,
		children: [
			stores.length === 1 ? /* @__PURE__ */ a$1("b", { children: store.name }) : /* @__PURE__ */ a$1("select", {
				"aria-label": "Store",
				value: String(index),
				onChange: (event) => go({
					store: event.currentTarget.value,
					row: null,
					sentence: null,
					offset: null
				}),
				children: stores.map((one, position) => /* @__PURE__ */ a$1("option", {
					value: String(position),
					children: one.name
				}, position))
			}),
			/* @__PURE__ */ a$1("span", {
				class: "facts",
				children: facts
			}),
			!store.finished && /* @__PURE__ */ a$1("span", {
				class: "tag warn",
				children: "unfinished"
			})
		]
	});
}
// src/parts/states.tsx
/** What a part shows before anything is asked, or when the answer holds nothing. */
function Empty({ title, children }) {
	return /* @__PURE__ */ a$1("div", {
		class: "state",
		children: [/* @__PURE__ */ a$1("strong", { children: title }), children && /* @__PURE__ */ a$1("p", { children })]
	});
}
/** A query under way: a bar, with numbers once it reports progress. */
function Loading({ what, progress }) {
	const known = progress?.total ? progress : void 0;
	return /* @__PURE__ */ a$1("div", {
		class: "state",
		role: "status",
		children: [/* @__PURE__ */ a$1("progress", {
			"aria-label": `Loading ${what}`,
			max: known?.total ?? void 0,
			value: known?.done
		}), /* @__PURE__ */ a$1("p", { children: [
			"Loading ",
			what,
			known && ` · ${Math.floor(100 * known.done / known.total)} %`
		] })]
	});
}
function ErrorState({ error, retry }) {
	return /* @__PURE__ */ a$1("div", {
		class: "state error",
		role: "alert",
		children: [
			/* @__PURE__ */ a$1("strong", { children: "This did not work" }),
			/* @__PURE__ */ a$1("p", {
				dir: "auto",
				children: error
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				onClick: retry,
				children: "Try again"
			})
		]
	});
}
/** The answer of a query once it is here, until then its state; a newer answer under way dims the older one. */
function Answer({ of, what, children }) {
	if (of.status === "error") return /* @__PURE__ */ a$1(ErrorState, {
		error: of.error,
		retry: of.retry
	});
	if (of.value === void 0) return of.status === "idle" ? null : /* @__PURE__ */ a$1(Loading, {
		what,
		progress: of.progress
	});
	const busy = of.status === "loading";
	return /* @__PURE__ */ a$1("div", {
		class: busy ? "answer busy" : "answer",
		"aria-busy": busy,
		children: children(of.value)
	});
}
// src/theme.ts
var theme = y$2("system");
var system = matchMedia("(prefers-color-scheme: dark)");
/** Whether the page is dark now: pictures drawn on a canvas read it. */
var dark = y$2(system.matches);
function setTheme(value) {
	theme.value = value;
	dark.value = value === "dark" || value === "system" && system.matches;
	document.documentElement.dataset.theme = value;
	try {
		localStorage.setItem("embstore-theme", value);
	} catch {}
}
// src/state.ts
function changed(values, changes) {
	const next = { ...values };
	for (const [name, value] of Object.entries(changes)) if (value === void 0 || value === null || value === "") delete next[name];
	else next[name] = String(value);
	return next;
}
/** A state of its own, for a page inside another page. */
function memoryState(initial = {}) {
	const values = y$2(initial);
	return {
		values,
		href: (changes) => `?${new URLSearchParams(changed(values.peek(), changes))}`,
		go: (changes) => void (values.value = changed(values.peek(), changes))
	};
}
/** A state with other names in the address for some of its values: each side of Compare has its own store. Where one of
* them is not in the address, it is that of `missing`, if any. */
function renamed(state, names, missing = () => ({})) {
	const outward = (changes) => Object.fromEntries(Object.entries(changes).map(([name, value]) => [names[name] ?? name, value]));
	return {
		values: O(() => {
			const all = state.values.value;
			const own = Object.fromEntries(Object.entries(names).map(([name, outer]) => [name, all[outer]]));
			const set = Object.entries(own).filter(([, value]) => value !== void 0);
			return changed(all, {
				...own,
				...missing(all),
				...Object.fromEntries(set)
			});
		}),
		go: (changes, options) => state.go(outward(changes), options),
		href: (changes) => state.href(outward(changes))
	};
}
// src/views/compare.tsx
/** The values that each side has for itself; all others are shared. */
var OWN = [
	"row",
	"sentence",
	"offset",
	"sense",
	"layer",
	"layers"
];
function CompareView() {
	const { views: all, values, go } = useApp();
	const views = all.filter((view) => view !== compare);
	const view = views.find((one) => one.name === values.of) ?? views[0];
	return /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("div", {
		class: "toolbar",
		children: [/* @__PURE__ */ a$1("label", {
			class: "field",
			children: [/* @__PURE__ */ a$1("span", { children: "View" }), /* @__PURE__ */ a$1("select", {
				value: view.name,
				onChange: (event) => go({ of: event.currentTarget.value }),
				children: views.map((one) => /* @__PURE__ */ a$1("option", {
					value: one.name,
					children: one.title
				}, one.name))
			})]
		}), /* @__PURE__ */ a$1("p", {
			class: "note",
			children: "The word, the sentence and the condition are shared; each side has its own store and layer."
		})]
	}), /* @__PURE__ */ a$1("div", {
		class: "sides",
		children: [/* @__PURE__ */ a$1(Side, {
			view,
			right: false
		}), /* @__PURE__ */ a$1(Side, {
			view,
			right: true
		})]
	})] });
}
function Side({ view, right }) {
	const app = useApp();
	const state = w$2(() => {
		const names = Object.fromEntries((right ? ["store", ...OWN] : []).map((name) => [name, `${name}2`]));
		return renamed(app.state, {
			view: "of",
			...names
		}, ({ store, layer, layers }) => {
			if (!right) return {};
			return {
				layer,
				layers,
				store: store === void 0 || store === "0" ? Math.min(1, app.stores.length - 1) : 0
			};
		});
	}, [
		app.state,
		app.stores,
		right
	]);
	return /* @__PURE__ */ a$1("section", {
		class: "side",
		"aria-label": right ? "Right" : "Left",
		children: /* @__PURE__ */ a$1(AppContext.Provider, {
			value: {
				...app,
				state
			},
			children: [/* @__PURE__ */ a$1(StorePicker, {}), /* @__PURE__ */ a$1(view.component, {})]
		})
	});
}
var compare = {
	name: "compare",
	title: "Compare",
	needs: ["stores"],
	component: CompareView
};
// src/pictures.ts
/** Saves pictures as files. */
function save(blob, name) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(blob);
	link.download = name;
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 1e4);
}
function saveCanvas(canvas, name) {
	canvas.toBlob((blob) => blob && save(blob, name), "image/png");
}
var DRAWN = [
	"fill",
	"fill-opacity",
	"stroke",
	"stroke-width",
	"stroke-opacity",
	"stroke-dasharray",
	"opacity",
	"font-family",
	"font-size",
	"font-weight",
	"text-anchor",
	"color",
	"visibility"
];
/** The text of a picture with the page's styles written into it, so that it looks the same elsewhere. */
function standalone(svg) {
	const copy = svg.cloneNode(true);
	const copies = copy.querySelectorAll("*");
	svg.querySelectorAll("*").forEach((element, index) => {
		const style = getComputedStyle(element);
		for (const name of DRAWN) copies[index].setAttribute(name, style.getPropertyValue(name));
	});
	const { width, height } = svg.getBoundingClientRect();
	copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
	copy.setAttribute("width", String(width));
	copy.setAttribute("height", String(height));
	const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
	ground.setAttribute("width", "100%");
	ground.setAttribute("height", "100%");
	ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
	copy.prepend(ground);
	return new XMLSerializer().serializeToString(copy);
}
/** Saves an <svg> as it is, or as a PNG of twice its size, by the ending of the name. */
async function saveSvg(svg, name) {
	const blob = new Blob([standalone(svg)], { type: "image/svg+xml" });
	if (name.endsWith(".svg")) return save(blob, name);
	const { width, height } = svg.getBoundingClientRect();
	const image = new Image();
	image.src = URL.createObjectURL(blob);
	await image.decode();
	const canvas = document.createElement("canvas");
	canvas.width = 2 * width;
	canvas.height = 2 * height;
	canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
	URL.revokeObjectURL(image.src);
	saveCanvas(canvas, name);
}
// src/parts/export_menu.tsx
/** Saves a view's table and its picture. */
function ExportMenu({ name, params, picture = false }) {
	const { source } = useApp();
	return /* @__PURE__ */ a$1("span", {
		class: "export",
		role: "group",
		"aria-label": `Export ${name}`,
		children: [source.exportUrl && /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("a", {
			href: source.exportUrl(name, params, "csv"),
			download: `${name}.csv`,
			children: "CSV"
		}), /* @__PURE__ */ a$1("a", {
			href: source.exportUrl(name, params, "parquet"),
			download: `${name}.parquet`,
			children: "Parquet"
		})] }), picture && /* @__PURE__ */ a$1(PictureButtons, {
			name,
			find: picture === true ? void 0 : picture
		})]
	});
}
/** Saves a picture: by default that of the <section> around. */
function PictureButtons({ name, find }) {
	const save = (button, format) => {
		const found = find ? find() : button.closest("section")?.querySelector(".chart svg");
		if (found instanceof SVGSVGElement) saveSvg(found, `${name}.${format}`);
		else if (found) saveCanvas(found, `${name}.png`);
	};
	return /* @__PURE__ */ a$1("span", {
		class: "export",
		children: [/* @__PURE__ */ a$1("button", {
			type: "button",
			class: "link",
			onClick: (event) => save(event.currentTarget, "svg"),
			children: "SVG"
		}), /* @__PURE__ */ a$1("button", {
			type: "button",
			class: "link",
			onClick: (event) => save(event.currentTarget, "png"),
			children: "PNG"
		})]
	});
}
// node_modules/d3-array/dist/d3-array.mjs
function ascending$1(a, b) {
	return a == null || b == null ? NaN : a < b ? -1 : a > b ? 1 : a >= b ? 0 : NaN;
}
function descending(a, b) {
	return a == null || b == null ? NaN : b < a ? -1 : b > a ? 1 : b >= a ? 0 : NaN;
}
function bisector(f) {
	let compare1, compare2, delta;
	if (f.length !== 2) {
		compare1 = ascending$1;
		compare2 = (d, x) => ascending$1(f(d), x);
		delta = (d, x) => f(d) - x;
	} else {
		compare1 = f === ascending$1 || f === descending ? f : zero$1;
		compare2 = f;
		delta = f;
	}
	function left(a, x, lo = 0, hi = a.length) {
		if (lo < hi) {
			if (compare1(x, x) !== 0) return hi;
			do {
				const mid = lo + hi >>> 1;
				if (compare2(a[mid], x) < 0) lo = mid + 1;
				else hi = mid;
			} while (lo < hi);
		}
		return lo;
	}
	function right(a, x, lo = 0, hi = a.length) {
		if (lo < hi) {
			if (compare1(x, x) !== 0) return hi;
			do {
				const mid = lo + hi >>> 1;
				if (compare2(a[mid], x) <= 0) lo = mid + 1;
				else hi = mid;
			} while (lo < hi);
		}
		return lo;
	}
	function center(a, x, lo = 0, hi = a.length) {
		const i = left(a, x, lo, hi - 1);
		return i > lo && delta(a[i - 1], x) > -delta(a[i], x) ? i - 1 : i;
	}
	return {
		left,
		center,
		right
	};
}
function zero$1() {
	return 0;
}
function number$6(x) {
	return x === null ? NaN : +x;
}
function* numbers(values, valueof) {
	if (valueof === void 0) {
		for (let value of values) if (value != null && (value = +value) >= value) yield value;
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null && (value = +value) >= value) yield value;
	}
}
var ascendingBisect = bisector(ascending$1);
var bisectRight = ascendingBisect.right;
ascendingBisect.left;
bisector(number$6).center;
function count(values, valueof) {
	let count = 0;
	if (valueof === void 0) {
		for (let value of values) if (value != null && (value = +value) >= value) ++count;
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null && (value = +value) >= value) ++count;
	}
	return count;
}
function length$1(array) {
	return array.length | 0;
}
function empty$1(length) {
	return !(length > 0);
}
function arrayify$1(values) {
	return typeof values !== "object" || "length" in values ? values : Array.from(values);
}
function reducer(reduce) {
	return (values) => reduce(...values);
}
function cross$1(...values) {
	const reduce = typeof values[values.length - 1] === "function" && reducer(values.pop());
	values = values.map(arrayify$1);
	const lengths = values.map(length$1);
	const j = values.length - 1;
	const index = new Array(j + 1).fill(0);
	const product = [];
	if (j < 0 || lengths.some(empty$1)) return product;
	while (true) {
		product.push(index.map((j, i) => values[i][j]));
		let i = j;
		while (++index[i] === lengths[i]) {
			if (i === 0) return reduce ? product.map(reduce) : product;
			index[i--] = 0;
		}
	}
}
function cumsum(values, valueof) {
	var sum = 0, index = 0;
	return Float64Array.from(values, valueof === void 0 ? (v) => sum += +v || 0 : (v) => sum += +valueof(v, index++, values) || 0);
}
function variance(values, valueof) {
	let count = 0;
	let delta;
	let mean = 0;
	let sum = 0;
	if (valueof === void 0) {
		for (let value of values) if (value != null && (value = +value) >= value) {
			delta = value - mean;
			mean += delta / ++count;
			sum += delta * (value - mean);
		}
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null && (value = +value) >= value) {
			delta = value - mean;
			mean += delta / ++count;
			sum += delta * (value - mean);
		}
	}
	if (count > 1) return sum / (count - 1);
}
function deviation(values, valueof) {
	const v = variance(values, valueof);
	return v ? Math.sqrt(v) : v;
}
function extent$1(values, valueof) {
	let min;
	let max;
	if (valueof === void 0) {
		for (const value of values) if (value != null) {
			if (min === void 0) {
				if (value >= value) min = max = value;
			} else {
				if (min > value) min = value;
				if (max < value) max = value;
			}
		}
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null) {
			if (min === void 0) {
				if (value >= value) min = max = value;
			} else {
				if (min > value) min = value;
				if (max < value) max = value;
			}
		}
	}
	return [min, max];
}
var Adder = class {
	constructor() {
		this._partials = /* @__PURE__ */ new Float64Array(32);
		this._n = 0;
	}
	add(x) {
		const p = this._partials;
		let i = 0;
		for (let j = 0; j < this._n && j < 32; j++) {
			const y = p[j], hi = x + y, lo = Math.abs(x) < Math.abs(y) ? x - (hi - y) : y - (hi - x);
			if (lo) p[i++] = lo;
			x = hi;
		}
		p[i] = x;
		this._n = i + 1;
		return this;
	}
	valueOf() {
		const p = this._partials;
		let n = this._n, x, y, lo, hi = 0;
		if (n > 0) {
			hi = p[--n];
			while (n > 0) {
				x = hi;
				y = p[--n];
				hi = x + y;
				lo = y - (hi - x);
				if (lo) break;
			}
			if (n > 0 && (lo < 0 && p[n - 1] < 0 || lo > 0 && p[n - 1] > 0)) {
				y = lo * 2;
				x = hi + y;
				if (y == x - hi) hi = x;
			}
		}
		return hi;
	}
};
var InternMap = class extends Map {
	constructor(entries, key = keyof$1) {
		super();
		Object.defineProperties(this, {
			_intern: { value: /* @__PURE__ */ new Map() },
			_key: { value: key }
		});
		if (entries != null) for (const [key, value] of entries) this.set(key, value);
	}
	get(key) {
		return super.get(intern_get(this, key));
	}
	has(key) {
		return super.has(intern_get(this, key));
	}
	set(key, value) {
		return super.set(intern_set(this, key), value);
	}
	delete(key) {
		return super.delete(intern_delete(this, key));
	}
};
var InternSet = class extends Set {
	constructor(values, key = keyof$1) {
		super();
		Object.defineProperties(this, {
			_intern: { value: /* @__PURE__ */ new Map() },
			_key: { value: key }
		});
		if (values != null) for (const value of values) this.add(value);
	}
	has(value) {
		return super.has(intern_get(this, value));
	}
	add(value) {
		return super.add(intern_set(this, value));
	}
	delete(value) {
		return super.delete(intern_delete(this, value));
	}
};
function intern_get({ _intern, _key }, value) {
	const key = _key(value);
	return _intern.has(key) ? _intern.get(key) : value;
}
function intern_set({ _intern, _key }, value) {
	const key = _key(value);
	if (_intern.has(key)) return _intern.get(key);
	_intern.set(key, value);
	return value;
}
function intern_delete({ _intern, _key }, value) {
	const key = _key(value);
	if (_intern.has(key)) {
		value = _intern.get(key);
		_intern.delete(key);
	}
	return value;
}
function keyof$1(value) {
	return value !== null && typeof value === "object" ? value.valueOf() : value;
}
function identity$6(x) {
	return x;
}
function group(values, ...keys) {
	return nest(values, identity$6, identity$6, keys);
}
function rollup(values, reduce, ...keys) {
	return nest(values, identity$6, reduce, keys);
}
function rollups(values, reduce, ...keys) {
	return nest(values, Array.from, reduce, keys);
}
function nest(values, map, reduce, keys) {
	return (function regroup(values, i) {
		if (i >= keys.length) return reduce(values);
		const groups = new InternMap();
		const keyof = keys[i++];
		let index = -1;
		for (const value of values) {
			const key = keyof(value, ++index, values);
			const group = groups.get(key);
			if (group) group.push(value);
			else groups.set(key, [value]);
		}
		for (const [key, values] of groups) groups.set(key, regroup(values, i));
		return map(groups);
	})(values, 0);
}
function permute(source, keys) {
	return Array.from(keys, (key) => source[key]);
}
function sort$1(values, ...F) {
	if (typeof values[Symbol.iterator] !== "function") throw new TypeError("values is not iterable");
	values = Array.from(values);
	let [f] = F;
	if (f && f.length !== 2 || F.length > 1) {
		const index = Uint32Array.from(values, (d, i) => i);
		if (F.length > 1) {
			F = F.map((f) => values.map(f));
			index.sort((i, j) => {
				for (const f of F) {
					const c = ascendingDefined$1(f[i], f[j]);
					if (c) return c;
				}
			});
		} else {
			f = values.map(f);
			index.sort((i, j) => ascendingDefined$1(f[i], f[j]));
		}
		return permute(values, index);
	}
	return values.sort(compareDefined(f));
}
function compareDefined(compare = ascending$1) {
	if (compare === ascending$1) return ascendingDefined$1;
	if (typeof compare !== "function") throw new TypeError("compare is not a function");
	return (a, b) => {
		const x = compare(a, b);
		if (x || x === 0) return x;
		return (compare(b, b) === 0) - (compare(a, a) === 0);
	};
}
function ascendingDefined$1(a, b) {
	return (a == null || !(a >= a)) - (b == null || !(b >= b)) || (a < b ? -1 : a > b ? 1 : 0);
}
function groupSort(values, reduce, key) {
	return (reduce.length !== 2 ? sort$1(rollup(values, reduce, key), (([ak, av], [bk, bv]) => ascending$1(av, bv) || ascending$1(ak, bk))) : sort$1(group(values, key), (([ak, av], [bk, bv]) => reduce(av, bv) || ascending$1(ak, bk)))).map(([key]) => key);
}
Array.prototype.slice;
var e10 = Math.sqrt(50);
var e5 = Math.sqrt(10);
var e2 = Math.sqrt(2);
function tickSpec(start, stop, count) {
	const step = (stop - start) / Math.max(0, count), power = Math.floor(Math.log10(step)), error = step / Math.pow(10, power), factor = error >= e10 ? 10 : error >= e5 ? 5 : error >= e2 ? 2 : 1;
	let i1, i2, inc;
	if (power < 0) {
		inc = Math.pow(10, -power) / factor;
		i1 = Math.round(start * inc);
		i2 = Math.round(stop * inc);
		if (i1 / inc < start) ++i1;
		if (i2 / inc > stop) --i2;
		inc = -inc;
	} else {
		inc = Math.pow(10, power) * factor;
		i1 = Math.round(start / inc);
		i2 = Math.round(stop / inc);
		if (i1 * inc < start) ++i1;
		if (i2 * inc > stop) --i2;
	}
	if (i2 < i1 && .5 <= count && count < 2) return tickSpec(start, stop, count * 2);
	return [
		i1,
		i2,
		inc
	];
}
function ticks(start, stop, count) {
	stop = +stop, start = +start, count = +count;
	if (!(count > 0)) return [];
	if (start === stop) return [start];
	const reverse = stop < start, [i1, i2, inc] = reverse ? tickSpec(stop, start, count) : tickSpec(start, stop, count);
	if (!(i2 >= i1)) return [];
	const n = i2 - i1 + 1, ticks = new Array(n);
	if (reverse) {
		if (inc < 0) for (let i = 0; i < n; ++i) ticks[i] = (i2 - i) / -inc;
		else for (let i = 0; i < n; ++i) ticks[i] = (i2 - i) * inc;
	} else if (inc < 0) for (let i = 0; i < n; ++i) ticks[i] = (i1 + i) / -inc;
	else for (let i = 0; i < n; ++i) ticks[i] = (i1 + i) * inc;
	return ticks;
}
function tickIncrement(start, stop, count) {
	stop = +stop, start = +start, count = +count;
	return tickSpec(start, stop, count)[2];
}
function tickStep(start, stop, count) {
	stop = +stop, start = +start, count = +count;
	const reverse = stop < start, inc = reverse ? tickIncrement(stop, start, count) : tickIncrement(start, stop, count);
	return (reverse ? -1 : 1) * (inc < 0 ? 1 / -inc : inc);
}
function thresholdSturges(values) {
	return Math.max(1, Math.ceil(Math.log(count(values)) / Math.LN2) + 1);
}
function max(values, valueof) {
	let max;
	if (valueof === void 0) {
		for (const value of values) if (value != null && (max < value || max === void 0 && value >= value)) max = value;
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null && (max < value || max === void 0 && value >= value)) max = value;
	}
	return max;
}
function maxIndex(values, valueof) {
	let max;
	let maxIndex = -1;
	let index = -1;
	if (valueof === void 0) for (const value of values) {
		++index;
		if (value != null && (max < value || max === void 0 && value >= value)) max = value, maxIndex = index;
	}
	else for (let value of values) if ((value = valueof(value, ++index, values)) != null && (max < value || max === void 0 && value >= value)) max = value, maxIndex = index;
	return maxIndex;
}
function min$1(values, valueof) {
	let min;
	if (valueof === void 0) {
		for (const value of values) if (value != null && (min > value || min === void 0 && value >= value)) min = value;
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null && (min > value || min === void 0 && value >= value)) min = value;
	}
	return min;
}
function minIndex(values, valueof) {
	let min;
	let minIndex = -1;
	let index = -1;
	if (valueof === void 0) for (const value of values) {
		++index;
		if (value != null && (min > value || min === void 0 && value >= value)) min = value, minIndex = index;
	}
	else for (let value of values) if ((value = valueof(value, ++index, values)) != null && (min > value || min === void 0 && value >= value)) min = value, minIndex = index;
	return minIndex;
}
function quickselect(array, k, left = 0, right = Infinity, compare) {
	k = Math.floor(k);
	left = Math.floor(Math.max(0, left));
	right = Math.floor(Math.min(array.length - 1, right));
	if (!(left <= k && k <= right)) return array;
	compare = compare === void 0 ? ascendingDefined$1 : compareDefined(compare);
	while (right > left) {
		if (right - left > 600) {
			const n = right - left + 1;
			const m = k - left + 1;
			const z = Math.log(n);
			const s = .5 * Math.exp(2 * z / 3);
			const sd = .5 * Math.sqrt(z * s * (n - s) / n) * (m - n / 2 < 0 ? -1 : 1);
			const newLeft = Math.max(left, Math.floor(k - m * s / n + sd));
			const newRight = Math.min(right, Math.floor(k + (n - m) * s / n + sd));
			quickselect(array, k, newLeft, newRight, compare);
		}
		const t = array[k];
		let i = left;
		let j = right;
		swap(array, left, k);
		if (compare(array[right], t) > 0) swap(array, left, right);
		while (i < j) {
			swap(array, i, j), ++i, --j;
			while (compare(array[i], t) < 0) ++i;
			while (compare(array[j], t) > 0) --j;
		}
		if (compare(array[left], t) === 0) swap(array, left, j);
		else ++j, swap(array, j, right);
		if (j <= k) left = j + 1;
		if (k <= j) right = j - 1;
	}
	return array;
}
function swap(array, i, j) {
	const t = array[i];
	array[i] = array[j];
	array[j] = t;
}
function greatest(values, compare = ascending$1) {
	let max;
	let defined = false;
	if (compare.length === 1) {
		let maxValue;
		for (const element of values) {
			const value = compare(element);
			if (defined ? ascending$1(value, maxValue) > 0 : ascending$1(value, value) === 0) {
				max = element;
				maxValue = value;
				defined = true;
			}
		}
	} else for (const value of values) if (defined ? compare(value, max) > 0 : compare(value, value) === 0) {
		max = value;
		defined = true;
	}
	return max;
}
function quantile$1(values, p, valueof) {
	values = Float64Array.from(numbers(values, valueof));
	if (!(n = values.length) || isNaN(p = +p)) return;
	if (p <= 0 || n < 2) return min$1(values);
	if (p >= 1) return max(values);
	var n, i = (n - 1) * p, i0 = Math.floor(i), value0 = max(quickselect(values, i0).subarray(0, i0 + 1));
	return value0 + (min$1(values.subarray(i0 + 1)) - value0) * (i - i0);
}
function quantileSorted(values, p, valueof = number$6) {
	if (!(n = values.length) || isNaN(p = +p)) return;
	if (p <= 0 || n < 2) return +valueof(values[0], 0, values);
	if (p >= 1) return +valueof(values[n - 1], n - 1, values);
	var n, i = (n - 1) * p, i0 = Math.floor(i), value0 = +valueof(values[i0], i0, values);
	return value0 + (+valueof(values[i0 + 1], i0 + 1, values) - value0) * (i - i0);
}
function thresholdFreedmanDiaconis(values, min, max) {
	const c = count(values), d = quantile$1(values, .75) - quantile$1(values, .25);
	return c && d ? Math.ceil((max - min) / (2 * d * Math.pow(c, -1 / 3))) : 1;
}
function thresholdScott(values, min, max) {
	const c = count(values), d = deviation(values);
	return c && d ? Math.ceil((max - min) * Math.cbrt(c) / (3.49 * d)) : 1;
}
function mean(values, valueof) {
	let count = 0;
	let sum = 0;
	if (valueof === void 0) {
		for (let value of values) if (value != null && (value = +value) >= value) ++count, sum += value;
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null && (value = +value) >= value) ++count, sum += value;
	}
	if (count) return sum / count;
}
function median(values, valueof) {
	return quantile$1(values, .5, valueof);
}
function* flatten(arrays) {
	for (const array of arrays) yield* array;
}
function merge(arrays) {
	return Array.from(flatten(arrays));
}
function mode(values, valueof) {
	const counts = new InternMap();
	if (valueof === void 0) {
		for (let value of values) if (value != null && value >= value) counts.set(value, (counts.get(value) || 0) + 1);
	} else {
		let index = -1;
		for (let value of values) if ((value = valueof(value, ++index, values)) != null && value >= value) counts.set(value, (counts.get(value) || 0) + 1);
	}
	let modeValue;
	let modeCount = 0;
	for (const [value, count] of counts) if (count > modeCount) {
		modeCount = count;
		modeValue = value;
	}
	return modeValue;
}
function pairs(values, pairof = pair) {
	const pairs = [];
	let previous;
	let first = false;
	for (const value of values) {
		if (first) pairs.push(pairof(previous, value));
		previous = value;
		first = true;
	}
	return pairs;
}
function pair(a, b) {
	return [a, b];
}
function range$1(start, stop, step) {
	start = +start, stop = +stop, step = (n = arguments.length) < 2 ? (stop = start, start = 0, 1) : n < 3 ? 1 : +step;
	var i = -1, n = Math.max(0, Math.ceil((stop - start) / step)) | 0, range = new Array(n);
	while (++i < n) range[i] = start + i * step;
	return range;
}
function sum(values, valueof) {
	let sum = 0;
	if (valueof === void 0) {
		for (let value of values) if (value = +value) sum += value;
	} else {
		let index = -1;
		for (let value of values) if (value = +valueof(value, ++index, values)) sum += value;
	}
	return sum;
}
function reverse(values) {
	if (typeof values[Symbol.iterator] !== "function") throw new TypeError("values is not iterable");
	return Array.from(values).reverse();
}
// node_modules/d3-axis/dist/d3-axis.mjs
function identity$5(x) {
	return x;
}
var top = 1;
var right = 2;
var bottom = 3;
var left = 4;
var epsilon$3 = 1e-6;
function translateX(x) {
	return "translate(" + x + ",0)";
}
function translateY(y) {
	return "translate(0," + y + ")";
}
function number$5(scale) {
	return (d) => +scale(d);
}
function center(scale, offset) {
	offset = Math.max(0, scale.bandwidth() - offset * 2) / 2;
	if (scale.round()) offset = Math.round(offset);
	return (d) => +scale(d) + offset;
}
function entering() {
	return !this.__axis;
}
function axis(orient, scale) {
	var tickArguments = [], tickValues = null, tickFormat = null, tickSizeInner = 6, tickSizeOuter = 6, tickPadding = 3, offset = typeof window !== "undefined" && window.devicePixelRatio > 1 ? 0 : .5, k = orient === top || orient === left ? -1 : 1, x = orient === left || orient === right ? "x" : "y", transform = orient === top || orient === bottom ? translateX : translateY;
	function axis(context) {
		var values = tickValues == null ? scale.ticks ? scale.ticks.apply(scale, tickArguments) : scale.domain() : tickValues, format = tickFormat == null ? scale.tickFormat ? scale.tickFormat.apply(scale, tickArguments) : identity$5 : tickFormat, spacing = Math.max(tickSizeInner, 0) + tickPadding, range = scale.range(), range0 = +range[0] + offset, range1 = +range[range.length - 1] + offset, position = (scale.bandwidth ? center : number$5)(scale.copy(), offset), selection = context.selection ? context.selection() : context, path = selection.selectAll(".domain").data([null]), tick = selection.selectAll(".tick").data(values, scale).order(), tickExit = tick.exit(), tickEnter = tick.enter().append("g").attr("class", "tick"), line = tick.select("line"), text = tick.select("text");
		path = path.merge(path.enter().insert("path", ".tick").attr("class", "domain").attr("stroke", "currentColor"));
		tick = tick.merge(tickEnter);
		line = line.merge(tickEnter.append("line").attr("stroke", "currentColor").attr(x + "2", k * tickSizeInner));
		text = text.merge(tickEnter.append("text").attr("fill", "currentColor").attr(x, k * spacing).attr("dy", orient === top ? "0em" : orient === bottom ? "0.71em" : "0.32em"));
		if (context !== selection) {
			path = path.transition(context);
			tick = tick.transition(context);
			line = line.transition(context);
			text = text.transition(context);
			tickExit = tickExit.transition(context).attr("opacity", epsilon$3).attr("transform", function(d) {
				return isFinite(d = position(d)) ? transform(d + offset) : this.getAttribute("transform");
			});
			tickEnter.attr("opacity", epsilon$3).attr("transform", function(d) {
				var p = this.parentNode.__axis;
				return transform((p && isFinite(p = p(d)) ? p : position(d)) + offset);
			});
		}
		tickExit.remove();
		path.attr("d", orient === left || orient === right ? tickSizeOuter ? "M" + k * tickSizeOuter + "," + range0 + "H" + offset + "V" + range1 + "H" + k * tickSizeOuter : "M" + offset + "," + range0 + "V" + range1 : tickSizeOuter ? "M" + range0 + "," + k * tickSizeOuter + "V" + offset + "H" + range1 + "V" + k * tickSizeOuter : "M" + range0 + "," + offset + "H" + range1);
		tick.attr("opacity", 1).attr("transform", function(d) {
			return transform(position(d) + offset);
		});
		line.attr(x + "2", k * tickSizeInner);
		text.attr(x, k * spacing).text(format);
		selection.filter(entering).attr("fill", "none").attr("font-size", 10).attr("font-family", "sans-serif").attr("text-anchor", orient === right ? "start" : orient === left ? "end" : "middle");
		selection.each(function() {
			this.__axis = position;
		});
	}
	axis.scale = function(_) {
		return arguments.length ? (scale = _, axis) : scale;
	};
	axis.ticks = function() {
		return tickArguments = Array.from(arguments), axis;
	};
	axis.tickArguments = function(_) {
		return arguments.length ? (tickArguments = _ == null ? [] : Array.from(_), axis) : tickArguments.slice();
	};
	axis.tickValues = function(_) {
		return arguments.length ? (tickValues = _ == null ? null : Array.from(_), axis) : tickValues && tickValues.slice();
	};
	axis.tickFormat = function(_) {
		return arguments.length ? (tickFormat = _, axis) : tickFormat;
	};
	axis.tickSize = function(_) {
		return arguments.length ? (tickSizeInner = tickSizeOuter = +_, axis) : tickSizeInner;
	};
	axis.tickSizeInner = function(_) {
		return arguments.length ? (tickSizeInner = +_, axis) : tickSizeInner;
	};
	axis.tickSizeOuter = function(_) {
		return arguments.length ? (tickSizeOuter = +_, axis) : tickSizeOuter;
	};
	axis.tickPadding = function(_) {
		return arguments.length ? (tickPadding = +_, axis) : tickPadding;
	};
	axis.offset = function(_) {
		return arguments.length ? (offset = +_, axis) : offset;
	};
	return axis;
}
function axisBottom(scale) {
	return axis(bottom, scale);
}
// node_modules/d3-selection/dist/d3-selection.mjs
var xhtml = "http://www.w3.org/1999/xhtml";
var namespaces = {
	svg: "http://www.w3.org/2000/svg",
	xhtml,
	xlink: "http://www.w3.org/1999/xlink",
	xml: "http://www.w3.org/XML/1998/namespace",
	xmlns: "http://www.w3.org/2000/xmlns/"
};
function namespace(name) {
	var prefix = name += "", i = prefix.indexOf(":");
	if (i >= 0 && (prefix = name.slice(0, i)) !== "xmlns") name = name.slice(i + 1);
	return namespaces.hasOwnProperty(prefix) ? {
		space: namespaces[prefix],
		local: name
	} : name;
}
function creatorInherit(name) {
	return function() {
		var document = this.ownerDocument, uri = this.namespaceURI;
		return uri === xhtml && document.documentElement.namespaceURI === xhtml ? document.createElement(name) : document.createElementNS(uri, name);
	};
}
function creatorFixed(fullname) {
	return function() {
		return this.ownerDocument.createElementNS(fullname.space, fullname.local);
	};
}
function creator(name) {
	var fullname = namespace(name);
	return (fullname.local ? creatorFixed : creatorInherit)(fullname);
}
function none() {}
function selector(selector) {
	return selector == null ? none : function() {
		return this.querySelector(selector);
	};
}
function selection_select(select) {
	if (typeof select !== "function") select = selector(select);
	for (var groups = this._groups, m = groups.length, subgroups = new Array(m), j = 0; j < m; ++j) for (var group = groups[j], n = group.length, subgroup = subgroups[j] = new Array(n), node, subnode, i = 0; i < n; ++i) if ((node = group[i]) && (subnode = select.call(node, node.__data__, i, group))) {
		if ("__data__" in node) subnode.__data__ = node.__data__;
		subgroup[i] = subnode;
	}
	return new Selection(subgroups, this._parents);
}
function array$1(x) {
	return x == null ? [] : Array.isArray(x) ? x : Array.from(x);
}
function empty() {
	return [];
}
function selectorAll(selector) {
	return selector == null ? empty : function() {
		return this.querySelectorAll(selector);
	};
}
function arrayAll(select) {
	return function() {
		return array$1(select.apply(this, arguments));
	};
}
function selection_selectAll(select) {
	if (typeof select === "function") select = arrayAll(select);
	else select = selectorAll(select);
	for (var groups = this._groups, m = groups.length, subgroups = [], parents = [], j = 0; j < m; ++j) for (var group = groups[j], n = group.length, node, i = 0; i < n; ++i) if (node = group[i]) {
		subgroups.push(select.call(node, node.__data__, i, group));
		parents.push(node);
	}
	return new Selection(subgroups, parents);
}
function matcher(selector) {
	return function() {
		return this.matches(selector);
	};
}
function childMatcher(selector) {
	return function(node) {
		return node.matches(selector);
	};
}
var find = Array.prototype.find;
function childFind(match) {
	return function() {
		return find.call(this.children, match);
	};
}
function childFirst() {
	return this.firstElementChild;
}
function selection_selectChild(match) {
	return this.select(match == null ? childFirst : childFind(typeof match === "function" ? match : childMatcher(match)));
}
var filter = Array.prototype.filter;
function children() {
	return Array.from(this.children);
}
function childrenFilter(match) {
	return function() {
		return filter.call(this.children, match);
	};
}
function selection_selectChildren(match) {
	return this.selectAll(match == null ? children : childrenFilter(typeof match === "function" ? match : childMatcher(match)));
}
function selection_filter(match) {
	if (typeof match !== "function") match = matcher(match);
	for (var groups = this._groups, m = groups.length, subgroups = new Array(m), j = 0; j < m; ++j) for (var group = groups[j], n = group.length, subgroup = subgroups[j] = [], node, i = 0; i < n; ++i) if ((node = group[i]) && match.call(node, node.__data__, i, group)) subgroup.push(node);
	return new Selection(subgroups, this._parents);
}
function sparse(update) {
	return new Array(update.length);
}
function selection_enter() {
	return new Selection(this._enter || this._groups.map(sparse), this._parents);
}
function EnterNode(parent, datum) {
	this.ownerDocument = parent.ownerDocument;
	this.namespaceURI = parent.namespaceURI;
	this._next = null;
	this._parent = parent;
	this.__data__ = datum;
}
EnterNode.prototype = {
	constructor: EnterNode,
	appendChild: function(child) {
		return this._parent.insertBefore(child, this._next);
	},
	insertBefore: function(child, next) {
		return this._parent.insertBefore(child, next);
	},
	querySelector: function(selector) {
		return this._parent.querySelector(selector);
	},
	querySelectorAll: function(selector) {
		return this._parent.querySelectorAll(selector);
	}
};
function constant$3(x) {
	return function() {
		return x;
	};
}
function bindIndex(parent, group, enter, update, exit, data) {
	var i = 0, node, groupLength = group.length, dataLength = data.length;
	for (; i < dataLength; ++i) if (node = group[i]) {
		node.__data__ = data[i];
		update[i] = node;
	} else enter[i] = new EnterNode(parent, data[i]);
	for (; i < groupLength; ++i) if (node = group[i]) exit[i] = node;
}
function bindKey(parent, group, enter, update, exit, data, key) {
	var i, node, nodeByKeyValue = /* @__PURE__ */ new Map(), groupLength = group.length, dataLength = data.length, keyValues = new Array(groupLength), keyValue;
	for (i = 0; i < groupLength; ++i) if (node = group[i]) {
		keyValues[i] = keyValue = key.call(node, node.__data__, i, group) + "";
		if (nodeByKeyValue.has(keyValue)) exit[i] = node;
		else nodeByKeyValue.set(keyValue, node);
	}
	for (i = 0; i < dataLength; ++i) {
		keyValue = key.call(parent, data[i], i, data) + "";
		if (node = nodeByKeyValue.get(keyValue)) {
			update[i] = node;
			node.__data__ = data[i];
			nodeByKeyValue.delete(keyValue);
		} else enter[i] = new EnterNode(parent, data[i]);
	}
	for (i = 0; i < groupLength; ++i) if ((node = group[i]) && nodeByKeyValue.get(keyValues[i]) === node) exit[i] = node;
}
function datum(node) {
	return node.__data__;
}
function selection_data(value, key) {
	if (!arguments.length) return Array.from(this, datum);
	var bind = key ? bindKey : bindIndex, parents = this._parents, groups = this._groups;
	if (typeof value !== "function") value = constant$3(value);
	for (var m = groups.length, update = new Array(m), enter = new Array(m), exit = new Array(m), j = 0; j < m; ++j) {
		var parent = parents[j], group = groups[j], groupLength = group.length, data = arraylike(value.call(parent, parent && parent.__data__, j, parents)), dataLength = data.length, enterGroup = enter[j] = new Array(dataLength), updateGroup = update[j] = new Array(dataLength);
		bind(parent, group, enterGroup, updateGroup, exit[j] = new Array(groupLength), data, key);
		for (var i0 = 0, i1 = 0, previous, next; i0 < dataLength; ++i0) if (previous = enterGroup[i0]) {
			if (i0 >= i1) i1 = i0 + 1;
			while (!(next = updateGroup[i1]) && ++i1 < dataLength);
			previous._next = next || null;
		}
	}
	update = new Selection(update, parents);
	update._enter = enter;
	update._exit = exit;
	return update;
}
function arraylike(data) {
	return typeof data === "object" && "length" in data ? data : Array.from(data);
}
function selection_exit() {
	return new Selection(this._exit || this._groups.map(sparse), this._parents);
}
function selection_join(onenter, onupdate, onexit) {
	var enter = this.enter(), update = this, exit = this.exit();
	if (typeof onenter === "function") {
		enter = onenter(enter);
		if (enter) enter = enter.selection();
	} else enter = enter.append(onenter + "");
	if (onupdate != null) {
		update = onupdate(update);
		if (update) update = update.selection();
	}
	if (onexit == null) exit.remove();
	else onexit(exit);
	return enter && update ? enter.merge(update).order() : update;
}
function selection_merge(context) {
	var selection = context.selection ? context.selection() : context;
	for (var groups0 = this._groups, groups1 = selection._groups, m0 = groups0.length, m1 = groups1.length, m = Math.min(m0, m1), merges = new Array(m0), j = 0; j < m; ++j) for (var group0 = groups0[j], group1 = groups1[j], n = group0.length, merge = merges[j] = new Array(n), node, i = 0; i < n; ++i) if (node = group0[i] || group1[i]) merge[i] = node;
	for (; j < m0; ++j) merges[j] = groups0[j];
	return new Selection(merges, this._parents);
}
function selection_order() {
	for (var groups = this._groups, j = -1, m = groups.length; ++j < m;) for (var group = groups[j], i = group.length - 1, next = group[i], node; --i >= 0;) if (node = group[i]) {
		if (next && node.compareDocumentPosition(next) ^ 4) next.parentNode.insertBefore(node, next);
		next = node;
	}
	return this;
}
function selection_sort(compare) {
	if (!compare) compare = ascending;
	function compareNode(a, b) {
		return a && b ? compare(a.__data__, b.__data__) : !a - !b;
	}
	for (var groups = this._groups, m = groups.length, sortgroups = new Array(m), j = 0; j < m; ++j) {
		for (var group = groups[j], n = group.length, sortgroup = sortgroups[j] = new Array(n), node, i = 0; i < n; ++i) if (node = group[i]) sortgroup[i] = node;
		sortgroup.sort(compareNode);
	}
	return new Selection(sortgroups, this._parents).order();
}
function ascending(a, b) {
	return a < b ? -1 : a > b ? 1 : a >= b ? 0 : NaN;
}
function selection_call() {
	var callback = arguments[0];
	arguments[0] = this;
	callback.apply(null, arguments);
	return this;
}
function selection_nodes() {
	return Array.from(this);
}
function selection_node() {
	for (var groups = this._groups, j = 0, m = groups.length; j < m; ++j) for (var group = groups[j], i = 0, n = group.length; i < n; ++i) {
		var node = group[i];
		if (node) return node;
	}
	return null;
}
function selection_size() {
	let size = 0;
	for (const node of this) ++size;
	return size;
}
function selection_empty() {
	return !this.node();
}
function selection_each(callback) {
	for (var groups = this._groups, j = 0, m = groups.length; j < m; ++j) for (var group = groups[j], i = 0, n = group.length, node; i < n; ++i) if (node = group[i]) callback.call(node, node.__data__, i, group);
	return this;
}
function attrRemove(name) {
	return function() {
		this.removeAttribute(name);
	};
}
function attrRemoveNS(fullname) {
	return function() {
		this.removeAttributeNS(fullname.space, fullname.local);
	};
}
function attrConstant(name, value) {
	return function() {
		this.setAttribute(name, value);
	};
}
function attrConstantNS(fullname, value) {
	return function() {
		this.setAttributeNS(fullname.space, fullname.local, value);
	};
}
function attrFunction(name, value) {
	return function() {
		var v = value.apply(this, arguments);
		if (v == null) this.removeAttribute(name);
		else this.setAttribute(name, v);
	};
}
function attrFunctionNS(fullname, value) {
	return function() {
		var v = value.apply(this, arguments);
		if (v == null) this.removeAttributeNS(fullname.space, fullname.local);
		else this.setAttributeNS(fullname.space, fullname.local, v);
	};
}
function selection_attr(name, value) {
	var fullname = namespace(name);
	if (arguments.length < 2) {
		var node = this.node();
		return fullname.local ? node.getAttributeNS(fullname.space, fullname.local) : node.getAttribute(fullname);
	}
	return this.each((value == null ? fullname.local ? attrRemoveNS : attrRemove : typeof value === "function" ? fullname.local ? attrFunctionNS : attrFunction : fullname.local ? attrConstantNS : attrConstant)(fullname, value));
}
function defaultView(node) {
	return node.ownerDocument && node.ownerDocument.defaultView || node.document && node || node.defaultView;
}
function styleRemove(name) {
	return function() {
		this.style.removeProperty(name);
	};
}
function styleConstant(name, value, priority) {
	return function() {
		this.style.setProperty(name, value, priority);
	};
}
function styleFunction(name, value, priority) {
	return function() {
		var v = value.apply(this, arguments);
		if (v == null) this.style.removeProperty(name);
		else this.style.setProperty(name, v, priority);
	};
}
function selection_style(name, value, priority) {
	return arguments.length > 1 ? this.each((value == null ? styleRemove : typeof value === "function" ? styleFunction : styleConstant)(name, value, priority == null ? "" : priority)) : styleValue(this.node(), name);
}
function styleValue(node, name) {
	return node.style.getPropertyValue(name) || defaultView(node).getComputedStyle(node, null).getPropertyValue(name);
}
function propertyRemove(name) {
	return function() {
		delete this[name];
	};
}
function propertyConstant(name, value) {
	return function() {
		this[name] = value;
	};
}
function propertyFunction(name, value) {
	return function() {
		var v = value.apply(this, arguments);
		if (v == null) delete this[name];
		else this[name] = v;
	};
}
function selection_property(name, value) {
	return arguments.length > 1 ? this.each((value == null ? propertyRemove : typeof value === "function" ? propertyFunction : propertyConstant)(name, value)) : this.node()[name];
}
function classArray(string) {
	return string.trim().split(/^|\s+/);
}
function classList(node) {
	return node.classList || new ClassList(node);
}
function ClassList(node) {
	this._node = node;
	this._names = classArray(node.getAttribute("class") || "");
}
ClassList.prototype = {
	add: function(name) {
		if (this._names.indexOf(name) < 0) {
			this._names.push(name);
			this._node.setAttribute("class", this._names.join(" "));
		}
	},
	remove: function(name) {
		var i = this._names.indexOf(name);
		if (i >= 0) {
			this._names.splice(i, 1);
			this._node.setAttribute("class", this._names.join(" "));
		}
	},
	contains: function(name) {
		return this._names.indexOf(name) >= 0;
	}
};
function classedAdd(node, names) {
	var list = classList(node), i = -1, n = names.length;
	while (++i < n) list.add(names[i]);
}
function classedRemove(node, names) {
	var list = classList(node), i = -1, n = names.length;
	while (++i < n) list.remove(names[i]);
}
function classedTrue(names) {
	return function() {
		classedAdd(this, names);
	};
}
function classedFalse(names) {
	return function() {
		classedRemove(this, names);
	};
}
function classedFunction(names, value) {
	return function() {
		(value.apply(this, arguments) ? classedAdd : classedRemove)(this, names);
	};
}
function selection_classed(name, value) {
	var names = classArray(name + "");
	if (arguments.length < 2) {
		var list = classList(this.node()), i = -1, n = names.length;
		while (++i < n) if (!list.contains(names[i])) return false;
		return true;
	}
	return this.each((typeof value === "function" ? classedFunction : value ? classedTrue : classedFalse)(names, value));
}
function textRemove() {
	this.textContent = "";
}
function textConstant(value) {
	return function() {
		this.textContent = value;
	};
}
function textFunction(value) {
	return function() {
		var v = value.apply(this, arguments);
		this.textContent = v == null ? "" : v;
	};
}
function selection_text(value) {
	return arguments.length ? this.each(value == null ? textRemove : (typeof value === "function" ? textFunction : textConstant)(value)) : this.node().textContent;
}
function htmlRemove() {
	this.innerHTML = "";
}
function htmlConstant(value) {
	return function() {
		this.innerHTML = value;
	};
}
function htmlFunction(value) {
	return function() {
		var v = value.apply(this, arguments);
		this.innerHTML = v == null ? "" : v;
	};
}
function selection_html(value) {
	return arguments.length ? this.each(value == null ? htmlRemove : (typeof value === "function" ? htmlFunction : htmlConstant)(value)) : this.node().innerHTML;
}
function raise() {
	if (this.nextSibling) this.parentNode.appendChild(this);
}
function selection_raise() {
	return this.each(raise);
}
function lower() {
	if (this.previousSibling) this.parentNode.insertBefore(this, this.parentNode.firstChild);
}
function selection_lower() {
	return this.each(lower);
}
function selection_append(name) {
	var create = typeof name === "function" ? name : creator(name);
	return this.select(function() {
		return this.appendChild(create.apply(this, arguments));
	});
}
function constantNull() {
	return null;
}
function selection_insert(name, before) {
	var create = typeof name === "function" ? name : creator(name), select = before == null ? constantNull : typeof before === "function" ? before : selector(before);
	return this.select(function() {
		return this.insertBefore(create.apply(this, arguments), select.apply(this, arguments) || null);
	});
}
function remove() {
	var parent = this.parentNode;
	if (parent) parent.removeChild(this);
}
function selection_remove() {
	return this.each(remove);
}
function selection_cloneShallow() {
	var clone = this.cloneNode(false), parent = this.parentNode;
	return parent ? parent.insertBefore(clone, this.nextSibling) : clone;
}
function selection_cloneDeep() {
	var clone = this.cloneNode(true), parent = this.parentNode;
	return parent ? parent.insertBefore(clone, this.nextSibling) : clone;
}
function selection_clone(deep) {
	return this.select(deep ? selection_cloneDeep : selection_cloneShallow);
}
function selection_datum(value) {
	return arguments.length ? this.property("__data__", value) : this.node().__data__;
}
function contextListener(listener) {
	return function(event) {
		listener.call(this, event, this.__data__);
	};
}
function parseTypenames(typenames) {
	return typenames.trim().split(/^|\s+/).map(function(t) {
		var name = "", i = t.indexOf(".");
		if (i >= 0) name = t.slice(i + 1), t = t.slice(0, i);
		return {
			type: t,
			name
		};
	});
}
function onRemove(typename) {
	return function() {
		var on = this.__on;
		if (!on) return;
		for (var j = 0, i = -1, m = on.length, o; j < m; ++j) if (o = on[j], (!typename.type || o.type === typename.type) && o.name === typename.name) this.removeEventListener(o.type, o.listener, o.options);
		else on[++i] = o;
		if (++i) on.length = i;
		else delete this.__on;
	};
}
function onAdd(typename, value, options) {
	return function() {
		var on = this.__on, o, listener = contextListener(value);
		if (on) {
			for (var j = 0, m = on.length; j < m; ++j) if ((o = on[j]).type === typename.type && o.name === typename.name) {
				this.removeEventListener(o.type, o.listener, o.options);
				this.addEventListener(o.type, o.listener = listener, o.options = options);
				o.value = value;
				return;
			}
		}
		this.addEventListener(typename.type, listener, options);
		o = {
			type: typename.type,
			name: typename.name,
			value,
			listener,
			options
		};
		if (!on) this.__on = [o];
		else on.push(o);
	};
}
function selection_on(typename, value, options) {
	var typenames = parseTypenames(typename + ""), i, n = typenames.length, t;
	if (arguments.length < 2) {
		var on = this.node().__on;
		if (on) {
			for (var j = 0, m = on.length, o; j < m; ++j) for (i = 0, o = on[j]; i < n; ++i) if ((t = typenames[i]).type === o.type && t.name === o.name) return o.value;
		}
		return;
	}
	on = value ? onAdd : onRemove;
	for (i = 0; i < n; ++i) this.each(on(typenames[i], value, options));
	return this;
}
function dispatchEvent(node, type, params) {
	var window = defaultView(node), event = window.CustomEvent;
	if (typeof event === "function") event = new event(type, params);
	else {
		event = window.document.createEvent("Event");
		if (params) event.initEvent(type, params.bubbles, params.cancelable), event.detail = params.detail;
		else event.initEvent(type, false, false);
	}
	node.dispatchEvent(event);
}
function dispatchConstant(type, params) {
	return function() {
		return dispatchEvent(this, type, params);
	};
}
function dispatchFunction(type, params) {
	return function() {
		return dispatchEvent(this, type, params.apply(this, arguments));
	};
}
function selection_dispatch(type, params) {
	return this.each((typeof params === "function" ? dispatchFunction : dispatchConstant)(type, params));
}
function* selection_iterator() {
	for (var groups = this._groups, j = 0, m = groups.length; j < m; ++j) for (var group = groups[j], i = 0, n = group.length, node; i < n; ++i) if (node = group[i]) yield node;
}
var root = [null];
function Selection(groups, parents) {
	this._groups = groups;
	this._parents = parents;
}
function selection() {
	return new Selection([[document.documentElement]], root);
}
function selection_selection() {
	return this;
}
Selection.prototype = selection.prototype = {
	constructor: Selection,
	select: selection_select,
	selectAll: selection_selectAll,
	selectChild: selection_selectChild,
	selectChildren: selection_selectChildren,
	filter: selection_filter,
	data: selection_data,
	enter: selection_enter,
	exit: selection_exit,
	join: selection_join,
	merge: selection_merge,
	selection: selection_selection,
	order: selection_order,
	sort: selection_sort,
	call: selection_call,
	nodes: selection_nodes,
	node: selection_node,
	size: selection_size,
	empty: selection_empty,
	each: selection_each,
	attr: selection_attr,
	style: selection_style,
	property: selection_property,
	classed: selection_classed,
	text: selection_text,
	html: selection_html,
	raise: selection_raise,
	lower: selection_lower,
	append: selection_append,
	insert: selection_insert,
	remove: selection_remove,
	clone: selection_clone,
	datum: selection_datum,
	on: selection_on,
	dispatch: selection_dispatch,
	[Symbol.iterator]: selection_iterator
};
function select(selector) {
	return typeof selector === "string" ? new Selection([[document.querySelector(selector)]], [document.documentElement]) : new Selection([[selector]], root);
}
var nextId = 0;
function local() {
	return new Local();
}
function Local() {
	this._ = "@" + (++nextId).toString(36);
}
Local.prototype = local.prototype = {
	constructor: Local,
	get: function(node) {
		var id = this._;
		while (!(id in node)) if (!(node = node.parentNode)) return;
		return node[id];
	},
	set: function(node, value) {
		return node[this._] = value;
	},
	remove: function(node) {
		return this._ in node && delete node[this._];
	},
	toString: function() {
		return this._;
	}
};
function sourceEvent(event) {
	let sourceEvent;
	while (sourceEvent = event.sourceEvent) event = sourceEvent;
	return event;
}
function pointer$1(event, node) {
	event = sourceEvent(event);
	if (node === void 0) node = event.currentTarget;
	if (node) {
		var svg = node.ownerSVGElement || node;
		if (svg.createSVGPoint) {
			var point = svg.createSVGPoint();
			point.x = event.clientX, point.y = event.clientY;
			point = point.matrixTransform(node.getScreenCTM().inverse());
			return [point.x, point.y];
		}
		if (node.getBoundingClientRect) {
			var rect = node.getBoundingClientRect();
			return [event.clientX - rect.left - node.clientLeft, event.clientY - rect.top - node.clientTop];
		}
	}
	return [event.pageX, event.pageY];
}
// node_modules/d3-color/dist/d3-color.mjs
function define(constructor, factory, prototype) {
	constructor.prototype = factory.prototype = prototype;
	prototype.constructor = constructor;
}
function extend(parent, definition) {
	var prototype = Object.create(parent.prototype);
	for (var key in definition) prototype[key] = definition[key];
	return prototype;
}
function Color() {}
var darker = .7;
var brighter = 1 / darker;
var reI = "\\s*([+-]?\\d+)\\s*";
var reN = "\\s*([+-]?(?:\\d*\\.)?\\d+(?:[eE][+-]?\\d+)?)\\s*";
var reP = "\\s*([+-]?(?:\\d*\\.)?\\d+(?:[eE][+-]?\\d+)?)%\\s*";
var reHex = /^#([0-9a-f]{3,8})$/;
var reRgbInteger = new RegExp(`^rgb\\(${reI},${reI},${reI}\\)$`);
var reRgbPercent = new RegExp(`^rgb\\(${reP},${reP},${reP}\\)$`);
var reRgbaInteger = new RegExp(`^rgba\\(${reI},${reI},${reI},${reN}\\)$`);
var reRgbaPercent = new RegExp(`^rgba\\(${reP},${reP},${reP},${reN}\\)$`);
var reHslPercent = new RegExp(`^hsl\\(${reN},${reP},${reP}\\)$`);
var reHslaPercent = new RegExp(`^hsla\\(${reN},${reP},${reP},${reN}\\)$`);
var named$1 = {
	aliceblue: 15792383,
	antiquewhite: 16444375,
	aqua: 65535,
	aquamarine: 8388564,
	azure: 15794175,
	beige: 16119260,
	bisque: 16770244,
	black: 0,
	blanchedalmond: 16772045,
	blue: 255,
	blueviolet: 9055202,
	brown: 10824234,
	burlywood: 14596231,
	cadetblue: 6266528,
	chartreuse: 8388352,
	chocolate: 13789470,
	coral: 16744272,
	cornflowerblue: 6591981,
	cornsilk: 16775388,
	crimson: 14423100,
	cyan: 65535,
	darkblue: 139,
	darkcyan: 35723,
	darkgoldenrod: 12092939,
	darkgray: 11119017,
	darkgreen: 25600,
	darkgrey: 11119017,
	darkkhaki: 12433259,
	darkmagenta: 9109643,
	darkolivegreen: 5597999,
	darkorange: 16747520,
	darkorchid: 10040012,
	darkred: 9109504,
	darksalmon: 15308410,
	darkseagreen: 9419919,
	darkslateblue: 4734347,
	darkslategray: 3100495,
	darkslategrey: 3100495,
	darkturquoise: 52945,
	darkviolet: 9699539,
	deeppink: 16716947,
	deepskyblue: 49151,
	dimgray: 6908265,
	dimgrey: 6908265,
	dodgerblue: 2003199,
	firebrick: 11674146,
	floralwhite: 16775920,
	forestgreen: 2263842,
	fuchsia: 16711935,
	gainsboro: 14474460,
	ghostwhite: 16316671,
	gold: 16766720,
	goldenrod: 14329120,
	gray: 8421504,
	green: 32768,
	greenyellow: 11403055,
	grey: 8421504,
	honeydew: 15794160,
	hotpink: 16738740,
	indianred: 13458524,
	indigo: 4915330,
	ivory: 16777200,
	khaki: 15787660,
	lavender: 15132410,
	lavenderblush: 16773365,
	lawngreen: 8190976,
	lemonchiffon: 16775885,
	lightblue: 11393254,
	lightcoral: 15761536,
	lightcyan: 14745599,
	lightgoldenrodyellow: 16448210,
	lightgray: 13882323,
	lightgreen: 9498256,
	lightgrey: 13882323,
	lightpink: 16758465,
	lightsalmon: 16752762,
	lightseagreen: 2142890,
	lightskyblue: 8900346,
	lightslategray: 7833753,
	lightslategrey: 7833753,
	lightsteelblue: 11584734,
	lightyellow: 16777184,
	lime: 65280,
	limegreen: 3329330,
	linen: 16445670,
	magenta: 16711935,
	maroon: 8388608,
	mediumaquamarine: 6737322,
	mediumblue: 205,
	mediumorchid: 12211667,
	mediumpurple: 9662683,
	mediumseagreen: 3978097,
	mediumslateblue: 8087790,
	mediumspringgreen: 64154,
	mediumturquoise: 4772300,
	mediumvioletred: 13047173,
	midnightblue: 1644912,
	mintcream: 16121850,
	mistyrose: 16770273,
	moccasin: 16770229,
	navajowhite: 16768685,
	navy: 128,
	oldlace: 16643558,
	olive: 8421376,
	olivedrab: 7048739,
	orange: 16753920,
	orangered: 16729344,
	orchid: 14315734,
	palegoldenrod: 15657130,
	palegreen: 10025880,
	paleturquoise: 11529966,
	palevioletred: 14381203,
	papayawhip: 16773077,
	peachpuff: 16767673,
	peru: 13468991,
	pink: 16761035,
	plum: 14524637,
	powderblue: 11591910,
	purple: 8388736,
	rebeccapurple: 6697881,
	red: 16711680,
	rosybrown: 12357519,
	royalblue: 4286945,
	saddlebrown: 9127187,
	salmon: 16416882,
	sandybrown: 16032864,
	seagreen: 3050327,
	seashell: 16774638,
	sienna: 10506797,
	silver: 12632256,
	skyblue: 8900331,
	slateblue: 6970061,
	slategray: 7372944,
	slategrey: 7372944,
	snow: 16775930,
	springgreen: 65407,
	steelblue: 4620980,
	tan: 13808780,
	teal: 32896,
	thistle: 14204888,
	tomato: 16737095,
	turquoise: 4251856,
	violet: 15631086,
	wheat: 16113331,
	white: 16777215,
	whitesmoke: 16119285,
	yellow: 16776960,
	yellowgreen: 10145074
};
define(Color, color$2, {
	copy(channels) {
		return Object.assign(new this.constructor(), this, channels);
	},
	displayable() {
		return this.rgb().displayable();
	},
	hex: color_formatHex,
	formatHex: color_formatHex,
	formatHex8: color_formatHex8,
	formatHsl: color_formatHsl,
	formatRgb: color_formatRgb,
	toString: color_formatRgb
});
function color_formatHex() {
	return this.rgb().formatHex();
}
function color_formatHex8() {
	return this.rgb().formatHex8();
}
function color_formatHsl() {
	return hslConvert(this).formatHsl();
}
function color_formatRgb() {
	return this.rgb().formatRgb();
}
function color$2(format) {
	var m, l;
	format = (format + "").trim().toLowerCase();
	return (m = reHex.exec(format)) ? (l = m[1].length, m = parseInt(m[1], 16), l === 6 ? rgbn(m) : l === 3 ? new Rgb(m >> 8 & 15 | m >> 4 & 240, m >> 4 & 15 | m & 240, (m & 15) << 4 | m & 15, 1) : l === 8 ? rgba(m >> 24 & 255, m >> 16 & 255, m >> 8 & 255, (m & 255) / 255) : l === 4 ? rgba(m >> 12 & 15 | m >> 8 & 240, m >> 8 & 15 | m >> 4 & 240, m >> 4 & 15 | m & 240, ((m & 15) << 4 | m & 15) / 255) : null) : (m = reRgbInteger.exec(format)) ? new Rgb(m[1], m[2], m[3], 1) : (m = reRgbPercent.exec(format)) ? new Rgb(m[1] * 255 / 100, m[2] * 255 / 100, m[3] * 255 / 100, 1) : (m = reRgbaInteger.exec(format)) ? rgba(m[1], m[2], m[3], m[4]) : (m = reRgbaPercent.exec(format)) ? rgba(m[1] * 255 / 100, m[2] * 255 / 100, m[3] * 255 / 100, m[4]) : (m = reHslPercent.exec(format)) ? hsla(m[1], m[2] / 100, m[3] / 100, 1) : (m = reHslaPercent.exec(format)) ? hsla(m[1], m[2] / 100, m[3] / 100, m[4]) : named$1.hasOwnProperty(format) ? rgbn(named$1[format]) : format === "transparent" ? new Rgb(NaN, NaN, NaN, 0) : null;
}
function rgbn(n) {
	return new Rgb(n >> 16 & 255, n >> 8 & 255, n & 255, 1);
}
function rgba(r, g, b, a) {
	if (a <= 0) r = g = b = NaN;
	return new Rgb(r, g, b, a);
}
function rgbConvert(o) {
	if (!(o instanceof Color)) o = color$2(o);
	if (!o) return new Rgb();
	o = o.rgb();
	return new Rgb(o.r, o.g, o.b, o.opacity);
}
function rgb$1(r, g, b, opacity) {
	return arguments.length === 1 ? rgbConvert(r) : new Rgb(r, g, b, opacity == null ? 1 : opacity);
}
function Rgb(r, g, b, opacity) {
	this.r = +r;
	this.g = +g;
	this.b = +b;
	this.opacity = +opacity;
}
define(Rgb, rgb$1, extend(Color, {
	brighter(k) {
		k = k == null ? brighter : Math.pow(brighter, k);
		return new Rgb(this.r * k, this.g * k, this.b * k, this.opacity);
	},
	darker(k) {
		k = k == null ? darker : Math.pow(darker, k);
		return new Rgb(this.r * k, this.g * k, this.b * k, this.opacity);
	},
	rgb() {
		return this;
	},
	clamp() {
		return new Rgb(clampi(this.r), clampi(this.g), clampi(this.b), clampa(this.opacity));
	},
	displayable() {
		return -.5 <= this.r && this.r < 255.5 && -.5 <= this.g && this.g < 255.5 && -.5 <= this.b && this.b < 255.5 && 0 <= this.opacity && this.opacity <= 1;
	},
	hex: rgb_formatHex,
	formatHex: rgb_formatHex,
	formatHex8: rgb_formatHex8,
	formatRgb: rgb_formatRgb,
	toString: rgb_formatRgb
}));
function rgb_formatHex() {
	return `#${hex(this.r)}${hex(this.g)}${hex(this.b)}`;
}
function rgb_formatHex8() {
	return `#${hex(this.r)}${hex(this.g)}${hex(this.b)}${hex((isNaN(this.opacity) ? 1 : this.opacity) * 255)}`;
}
function rgb_formatRgb() {
	const a = clampa(this.opacity);
	return `${a === 1 ? "rgb(" : "rgba("}${clampi(this.r)}, ${clampi(this.g)}, ${clampi(this.b)}${a === 1 ? ")" : `, ${a})`}`;
}
function clampa(opacity) {
	return isNaN(opacity) ? 1 : Math.max(0, Math.min(1, opacity));
}
function clampi(value) {
	return Math.max(0, Math.min(255, Math.round(value) || 0));
}
function hex(value) {
	value = clampi(value);
	return (value < 16 ? "0" : "") + value.toString(16);
}
function hsla(h, s, l, a) {
	if (a <= 0) h = s = l = NaN;
	else if (l <= 0 || l >= 1) h = s = NaN;
	else if (s <= 0) h = NaN;
	return new Hsl(h, s, l, a);
}
function hslConvert(o) {
	if (o instanceof Hsl) return new Hsl(o.h, o.s, o.l, o.opacity);
	if (!(o instanceof Color)) o = color$2(o);
	if (!o) return new Hsl();
	if (o instanceof Hsl) return o;
	o = o.rgb();
	var r = o.r / 255, g = o.g / 255, b = o.b / 255, min = Math.min(r, g, b), max = Math.max(r, g, b), h = NaN, s = max - min, l = (max + min) / 2;
	if (s) {
		if (r === max) h = (g - b) / s + (g < b) * 6;
		else if (g === max) h = (b - r) / s + 2;
		else h = (r - g) / s + 4;
		s /= l < .5 ? max + min : 2 - max - min;
		h *= 60;
	} else s = l > 0 && l < 1 ? 0 : h;
	return new Hsl(h, s, l, o.opacity);
}
function hsl$1(h, s, l, opacity) {
	return arguments.length === 1 ? hslConvert(h) : new Hsl(h, s, l, opacity == null ? 1 : opacity);
}
function Hsl(h, s, l, opacity) {
	this.h = +h;
	this.s = +s;
	this.l = +l;
	this.opacity = +opacity;
}
define(Hsl, hsl$1, extend(Color, {
	brighter(k) {
		k = k == null ? brighter : Math.pow(brighter, k);
		return new Hsl(this.h, this.s, this.l * k, this.opacity);
	},
	darker(k) {
		k = k == null ? darker : Math.pow(darker, k);
		return new Hsl(this.h, this.s, this.l * k, this.opacity);
	},
	rgb() {
		var h = this.h % 360 + (this.h < 0) * 360, s = isNaN(h) || isNaN(this.s) ? 0 : this.s, l = this.l, m2 = l + (l < .5 ? l : 1 - l) * s, m1 = 2 * l - m2;
		return new Rgb(hsl2rgb(h >= 240 ? h - 240 : h + 120, m1, m2), hsl2rgb(h, m1, m2), hsl2rgb(h < 120 ? h + 240 : h - 120, m1, m2), this.opacity);
	},
	clamp() {
		return new Hsl(clamph(this.h), clampt(this.s), clampt(this.l), clampa(this.opacity));
	},
	displayable() {
		return (0 <= this.s && this.s <= 1 || isNaN(this.s)) && 0 <= this.l && this.l <= 1 && 0 <= this.opacity && this.opacity <= 1;
	},
	formatHsl() {
		const a = clampa(this.opacity);
		return `${a === 1 ? "hsl(" : "hsla("}${clamph(this.h)}, ${clampt(this.s) * 100}%, ${clampt(this.l) * 100}%${a === 1 ? ")" : `, ${a})`}`;
	}
}));
function clamph(value) {
	value = (value || 0) % 360;
	return value < 0 ? value + 360 : value;
}
function clampt(value) {
	return Math.max(0, Math.min(1, value || 0));
}
function hsl2rgb(h, m1, m2) {
	return (h < 60 ? m1 + (m2 - m1) * h / 60 : h < 180 ? m2 : h < 240 ? m1 + (m2 - m1) * (240 - h) / 60 : m1) * 255;
}
var radians$2 = Math.PI / 180;
var degrees$2 = 180 / Math.PI;
var K = 18;
var Xn = .96422;
var Yn = 1;
var Zn = .82521;
var t0$1 = 4 / 29;
var t1$1 = 6 / 29;
var t2 = 3 * t1$1 * t1$1;
var t3 = t1$1 * t1$1 * t1$1;
function labConvert(o) {
	if (o instanceof Lab) return new Lab(o.l, o.a, o.b, o.opacity);
	if (o instanceof Hcl) return hcl2lab(o);
	if (!(o instanceof Rgb)) o = rgbConvert(o);
	var r = rgb2lrgb(o.r), g = rgb2lrgb(o.g), b = rgb2lrgb(o.b), y = xyz2lab((.2225045 * r + .7168786 * g + .0606169 * b) / Yn), x, z;
	if (r === g && g === b) x = z = y;
	else {
		x = xyz2lab((.4360747 * r + .3850649 * g + .1430804 * b) / Xn);
		z = xyz2lab((.0139322 * r + .0971045 * g + .7141733 * b) / Zn);
	}
	return new Lab(116 * y - 16, 500 * (x - y), 200 * (y - z), o.opacity);
}
function lab$1(l, a, b, opacity) {
	return arguments.length === 1 ? labConvert(l) : new Lab(l, a, b, opacity == null ? 1 : opacity);
}
function Lab(l, a, b, opacity) {
	this.l = +l;
	this.a = +a;
	this.b = +b;
	this.opacity = +opacity;
}
define(Lab, lab$1, extend(Color, {
	brighter(k) {
		return new Lab(this.l + K * (k == null ? 1 : k), this.a, this.b, this.opacity);
	},
	darker(k) {
		return new Lab(this.l - K * (k == null ? 1 : k), this.a, this.b, this.opacity);
	},
	rgb() {
		var y = (this.l + 16) / 116, x = isNaN(this.a) ? y : y + this.a / 500, z = isNaN(this.b) ? y : y - this.b / 200;
		x = Xn * lab2xyz(x);
		y = Yn * lab2xyz(y);
		z = Zn * lab2xyz(z);
		return new Rgb(lrgb2rgb(3.1338561 * x - 1.6168667 * y - .4906146 * z), lrgb2rgb(-.9787684 * x + 1.9161415 * y + .033454 * z), lrgb2rgb(.0719453 * x - .2289914 * y + 1.4052427 * z), this.opacity);
	}
}));
function xyz2lab(t) {
	return t > t3 ? Math.pow(t, 1 / 3) : t / t2 + t0$1;
}
function lab2xyz(t) {
	return t > t1$1 ? t * t * t : t2 * (t - t0$1);
}
function lrgb2rgb(x) {
	return 255 * (x <= .0031308 ? 12.92 * x : 1.055 * Math.pow(x, 1 / 2.4) - .055);
}
function rgb2lrgb(x) {
	return (x /= 255) <= .04045 ? x / 12.92 : Math.pow((x + .055) / 1.055, 2.4);
}
function hclConvert(o) {
	if (o instanceof Hcl) return new Hcl(o.h, o.c, o.l, o.opacity);
	if (!(o instanceof Lab)) o = labConvert(o);
	if (o.a === 0 && o.b === 0) return new Hcl(NaN, 0 < o.l && o.l < 100 ? 0 : NaN, o.l, o.opacity);
	var h = Math.atan2(o.b, o.a) * degrees$2;
	return new Hcl(h < 0 ? h + 360 : h, Math.sqrt(o.a * o.a + o.b * o.b), o.l, o.opacity);
}
function hcl$1(h, c, l, opacity) {
	return arguments.length === 1 ? hclConvert(h) : new Hcl(h, c, l, opacity == null ? 1 : opacity);
}
function Hcl(h, c, l, opacity) {
	this.h = +h;
	this.c = +c;
	this.l = +l;
	this.opacity = +opacity;
}
function hcl2lab(o) {
	if (isNaN(o.h)) return new Lab(o.l, 0, 0, o.opacity);
	var h = o.h * radians$2;
	return new Lab(o.l, Math.cos(h) * o.c, Math.sin(h) * o.c, o.opacity);
}
define(Hcl, hcl$1, extend(Color, {
	brighter(k) {
		return new Hcl(this.h, this.c, this.l + K * (k == null ? 1 : k), this.opacity);
	},
	darker(k) {
		return new Hcl(this.h, this.c, this.l - K * (k == null ? 1 : k), this.opacity);
	},
	rgb() {
		return hcl2lab(this).rgb();
	}
}));
var A = -.14861;
var B = 1.78277;
var C = -.29227;
var D = -.90649;
var E = 1.97294;
var ED = E * D;
var EB = E * B;
var BC_DA = B * C - D * A;
function cubehelixConvert(o) {
	if (o instanceof Cubehelix) return new Cubehelix(o.h, o.s, o.l, o.opacity);
	if (!(o instanceof Rgb)) o = rgbConvert(o);
	var r = o.r / 255, g = o.g / 255, b = o.b / 255, l = (BC_DA * b + ED * r - EB * g) / (BC_DA + ED - EB), bl = b - l, k = (E * (g - l) - C * bl) / D, s = Math.sqrt(k * k + bl * bl) / (E * l * (1 - l)), h = s ? Math.atan2(k, bl) * degrees$2 - 120 : NaN;
	return new Cubehelix(h < 0 ? h + 360 : h, s, l, o.opacity);
}
function cubehelix$1(h, s, l, opacity) {
	return arguments.length === 1 ? cubehelixConvert(h) : new Cubehelix(h, s, l, opacity == null ? 1 : opacity);
}
function Cubehelix(h, s, l, opacity) {
	this.h = +h;
	this.s = +s;
	this.l = +l;
	this.opacity = +opacity;
}
define(Cubehelix, cubehelix$1, extend(Color, {
	brighter(k) {
		k = k == null ? brighter : Math.pow(brighter, k);
		return new Cubehelix(this.h, this.s, this.l * k, this.opacity);
	},
	darker(k) {
		k = k == null ? darker : Math.pow(darker, k);
		return new Cubehelix(this.h, this.s, this.l * k, this.opacity);
	},
	rgb() {
		var h = isNaN(this.h) ? 0 : (this.h + 120) * radians$2, l = +this.l, a = isNaN(this.s) ? 0 : this.s * l * (1 - l), cosh = Math.cos(h), sinh = Math.sin(h);
		return new Rgb(255 * (l + a * (A * cosh + B * sinh)), 255 * (l + a * (C * cosh + D * sinh)), 255 * (l + a * (E * cosh)), this.opacity);
	}
}));
// node_modules/d3-interpolate/dist/d3-interpolate.mjs
function basis$2(t1, v0, v1, v2, v3) {
	var t2 = t1 * t1, t3 = t2 * t1;
	return ((1 - 3 * t1 + 3 * t2 - t3) * v0 + (4 - 6 * t2 + 3 * t3) * v1 + (1 + 3 * t1 + 3 * t2 - 3 * t3) * v2 + t3 * v3) / 6;
}
function basis$1(values) {
	var n = values.length - 1;
	return function(t) {
		var i = t <= 0 ? t = 0 : t >= 1 ? (t = 1, n - 1) : Math.floor(t * n), v1 = values[i], v2 = values[i + 1], v0 = i > 0 ? values[i - 1] : 2 * v1 - v2, v3 = i < n - 1 ? values[i + 2] : 2 * v2 - v1;
		return basis$2((t - i / n) * n, v0, v1, v2, v3);
	};
}
var constant$2 = (x) => () => x;
function linear$1(a, d) {
	return function(t) {
		return a + t * d;
	};
}
function exponential(a, b, y) {
	return a = Math.pow(a, y), b = Math.pow(b, y) - a, y = 1 / y, function(t) {
		return Math.pow(a + t * b, y);
	};
}
function hue$1(a, b) {
	var d = b - a;
	return d ? linear$1(a, d > 180 || d < -180 ? d - 360 * Math.round(d / 360) : d) : constant$2(isNaN(a) ? b : a);
}
function gamma(y) {
	return (y = +y) === 1 ? nogamma : function(a, b) {
		return b - a ? exponential(a, b, y) : constant$2(isNaN(a) ? b : a);
	};
}
function nogamma(a, b) {
	var d = b - a;
	return d ? linear$1(a, d) : constant$2(isNaN(a) ? b : a);
}
var rgb = (function rgbGamma(y) {
	var color = gamma(y);
	function rgb(start, end) {
		var r = color((start = rgb$1(start)).r, (end = rgb$1(end)).r), g = color(start.g, end.g), b = color(start.b, end.b), opacity = nogamma(start.opacity, end.opacity);
		return function(t) {
			start.r = r(t);
			start.g = g(t);
			start.b = b(t);
			start.opacity = opacity(t);
			return start + "";
		};
	}
	rgb.gamma = rgbGamma;
	return rgb;
})(1);
function rgbSpline(spline) {
	return function(colors) {
		var n = colors.length, r = new Array(n), g = new Array(n), b = new Array(n), i = 0, color;
		for (; i < n; ++i) {
			color = rgb$1(colors[i]);
			r[i] = color.r || 0;
			g[i] = color.g || 0;
			b[i] = color.b || 0;
		}
		r = spline(r);
		g = spline(g);
		b = spline(b);
		color.opacity = 1;
		return function(t) {
			color.r = r(t);
			color.g = g(t);
			color.b = b(t);
			return color + "";
		};
	};
}
var rgbBasis = rgbSpline(basis$1);
function numberArray(a, b) {
	if (!b) b = [];
	var n = a ? Math.min(b.length, a.length) : 0, c = b.slice(), i;
	return function(t) {
		for (i = 0; i < n; ++i) c[i] = a[i] * (1 - t) + b[i] * t;
		return c;
	};
}
function isNumberArray$1(x) {
	return ArrayBuffer.isView(x) && !(x instanceof DataView);
}
function genericArray(a, b) {
	var nb = b ? b.length : 0, na = a ? Math.min(nb, a.length) : 0, x = new Array(na), c = new Array(nb), i = 0;
	for (; i < na; ++i) x[i] = value(a[i], b[i]);
	for (; i < nb; ++i) c[i] = b[i];
	return function(t) {
		for (i = 0; i < na; ++i) c[i] = x[i](t);
		return c;
	};
}
function date$1(a, b) {
	var d = /* @__PURE__ */ new Date();
	return a = +a, b = +b, function(t) {
		return d.setTime(a * (1 - t) + b * t), d;
	};
}
function number$4(a, b) {
	return a = +a, b = +b, function(t) {
		return a * (1 - t) + b * t;
	};
}
function object(a, b) {
	var i = {}, c = {}, k;
	if (a === null || typeof a !== "object") a = {};
	if (b === null || typeof b !== "object") b = {};
	for (k in b) if (k in a) i[k] = value(a[k], b[k]);
	else c[k] = b[k];
	return function(t) {
		for (k in i) c[k] = i[k](t);
		return c;
	};
}
var reA = /[-+]?(?:\d+\.?\d*|\.?\d+)(?:[eE][-+]?\d+)?/g;
var reB = new RegExp(reA.source, "g");
function zero(b) {
	return function() {
		return b;
	};
}
function one$1(b) {
	return function(t) {
		return b(t) + "";
	};
}
function string$1(a, b) {
	var bi = reA.lastIndex = reB.lastIndex = 0, am, bm, bs, i = -1, s = [], q = [];
	a = a + "", b = b + "";
	while ((am = reA.exec(a)) && (bm = reB.exec(b))) {
		if ((bs = bm.index) > bi) {
			bs = b.slice(bi, bs);
			if (s[i]) s[i] += bs;
			else s[++i] = bs;
		}
		if ((am = am[0]) === (bm = bm[0])) {
			if (s[i]) s[i] += bm;
			else s[++i] = bm;
		} else {
			s[++i] = null;
			q.push({
				i,
				x: number$4(am, bm)
			});
		}
		bi = reB.lastIndex;
	}
	if (bi < b.length) {
		bs = b.slice(bi);
		if (s[i]) s[i] += bs;
		else s[++i] = bs;
	}
	return s.length < 2 ? q[0] ? one$1(q[0].x) : zero(b) : (b = q.length, function(t) {
		for (var i = 0, o; i < b; ++i) s[(o = q[i]).i] = o.x(t);
		return s.join("");
	});
}
function value(a, b) {
	var t = typeof b, c;
	return b == null || t === "boolean" ? constant$2(b) : (t === "number" ? number$4 : t === "string" ? (c = color$2(b)) ? (b = c, rgb) : string$1 : b instanceof color$2 ? rgb : b instanceof Date ? date$1 : isNumberArray$1(b) ? numberArray : Array.isArray(b) ? genericArray : typeof b.valueOf !== "function" && typeof b.toString !== "function" || isNaN(b) ? object : number$4)(a, b);
}
function round(a, b) {
	return a = +a, b = +b, function(t) {
		return Math.round(a * (1 - t) + b * t);
	};
}
var epsilon2$1 = 1e-12;
function cosh(x) {
	return ((x = Math.exp(x)) + 1 / x) / 2;
}
function sinh(x) {
	return ((x = Math.exp(x)) - 1 / x) / 2;
}
function tanh(x) {
	return ((x = Math.exp(2 * x)) - 1) / (x + 1);
}
(function zoomRho(rho, rho2, rho4) {
	function zoom(p0, p1) {
		var ux0 = p0[0], uy0 = p0[1], w0 = p0[2], ux1 = p1[0], uy1 = p1[1], w1 = p1[2], dx = ux1 - ux0, dy = uy1 - uy0, d2 = dx * dx + dy * dy, i, S;
		if (d2 < epsilon2$1) {
			S = Math.log(w1 / w0) / rho;
			i = function(t) {
				return [
					ux0 + t * dx,
					uy0 + t * dy,
					w0 * Math.exp(rho * t * S)
				];
			};
		} else {
			var d1 = Math.sqrt(d2), b0 = (w1 * w1 - w0 * w0 + rho4 * d2) / (2 * w0 * rho2 * d1), b1 = (w1 * w1 - w0 * w0 - rho4 * d2) / (2 * w1 * rho2 * d1), r0 = Math.log(Math.sqrt(b0 * b0 + 1) - b0);
			S = (Math.log(Math.sqrt(b1 * b1 + 1) - b1) - r0) / rho;
			i = function(t) {
				var s = t * S, coshr0 = cosh(r0), u = w0 / (rho2 * d1) * (coshr0 * tanh(rho * s + r0) - sinh(r0));
				return [
					ux0 + u * dx,
					uy0 + u * dy,
					w0 * coshr0 / cosh(rho * s + r0)
				];
			};
		}
		i.duration = Math.abs(S) * 1e3 * rho / Math.SQRT2;
		return i;
	}
	zoom.rho = function(_) {
		var _1 = Math.max(.001, +_), _2 = _1 * _1;
		return zoomRho(_1, _2, _2 * _2);
	};
	return zoom;
})(Math.SQRT2, 2, 4);
function hsl(hue) {
	return function(start, end) {
		var h = hue((start = hsl$1(start)).h, (end = hsl$1(end)).h), s = nogamma(start.s, end.s), l = nogamma(start.l, end.l), opacity = nogamma(start.opacity, end.opacity);
		return function(t) {
			start.h = h(t);
			start.s = s(t);
			start.l = l(t);
			start.opacity = opacity(t);
			return start + "";
		};
	};
}
var hsl_default = hsl(hue$1);
function lab(start, end) {
	var l = nogamma((start = lab$1(start)).l, (end = lab$1(end)).l), a = nogamma(start.a, end.a), b = nogamma(start.b, end.b), opacity = nogamma(start.opacity, end.opacity);
	return function(t) {
		start.l = l(t);
		start.a = a(t);
		start.b = b(t);
		start.opacity = opacity(t);
		return start + "";
	};
}
function hcl(hue) {
	return function(start, end) {
		var h = hue((start = hcl$1(start)).h, (end = hcl$1(end)).h), c = nogamma(start.c, end.c), l = nogamma(start.l, end.l), opacity = nogamma(start.opacity, end.opacity);
		return function(t) {
			start.h = h(t);
			start.c = c(t);
			start.l = l(t);
			start.opacity = opacity(t);
			return start + "";
		};
	};
}
var hcl_default = hcl(hue$1);
function cubehelix$2(hue) {
	return (function cubehelixGamma(y) {
		y = +y;
		function cubehelix(start, end) {
			var h = hue((start = cubehelix$1(start)).h, (end = cubehelix$1(end)).h), s = nogamma(start.s, end.s), l = nogamma(start.l, end.l), opacity = nogamma(start.opacity, end.opacity);
			return function(t) {
				start.h = h(t);
				start.s = s(t);
				start.l = l(Math.pow(t, y));
				start.opacity = opacity(t);
				return start + "";
			};
		}
		cubehelix.gamma = cubehelixGamma;
		return cubehelix;
	})(1);
}
cubehelix$2(hue$1);
var cubehelixLong = cubehelix$2(nogamma);
function piecewise(interpolate, values) {
	if (values === void 0) values = interpolate, interpolate = value;
	var i = 0, n = values.length - 1, v = values[0], I = new Array(n < 0 ? 0 : n);
	while (i < n) I[i] = interpolate(v, v = values[++i]);
	return function(t) {
		var i = Math.max(0, Math.min(n - 1, Math.floor(t *= n)));
		return I[i](t - i);
	};
}
function quantize(interpolator, n) {
	var samples = new Array(n);
	for (var i = 0; i < n; ++i) samples[i] = interpolator(i / (n - 1));
	return samples;
}
// node_modules/d3-path/dist/d3-path.mjs
var pi$3 = Math.PI;
var tau$3 = 2 * pi$3;
var epsilon$2 = 1e-6;
var tauEpsilon = tau$3 - epsilon$2;
function append$1(strings) {
	this._ += strings[0];
	for (let i = 1, n = strings.length; i < n; ++i) this._ += arguments[i] + strings[i];
}
function appendRound$1(digits) {
	let d = Math.floor(digits);
	if (!(d >= 0)) throw new Error(`invalid digits: ${digits}`);
	if (d > 15) return append$1;
	const k = 10 ** d;
	return function(strings) {
		this._ += strings[0];
		for (let i = 1, n = strings.length; i < n; ++i) this._ += Math.round(arguments[i] * k) / k + strings[i];
	};
}
function equal(x0, y0, x1, y1) {
	return x0 === x1 && y0 === y1;
}
function equalRound(digits) {
	const d = Math.floor(digits);
	if (!(d <= 15)) return equal;
	const k = 10 ** d;
	const r = function(value) {
		return Math.round(value * k);
	};
	return function(x0, y0, x1, y1) {
		return r(x0) === r(x1) && r(y0) === r(y1);
	};
}
var Path = class {
	constructor(digits) {
		this._x0 = this._y0 = this._x1 = this._y1 = null;
		this._ = "";
		this._append = digits == null ? append$1 : appendRound$1(digits);
		this._equal = digits == null ? equal : equalRound(digits);
	}
	moveTo(x, y) {
		this._append`M${this._x0 = this._x1 = +x},${this._y0 = this._y1 = +y}`;
	}
	closePath() {
		if (this._x1 !== null) {
			this._x1 = this._x0, this._y1 = this._y0;
			this._append`Z`;
		}
	}
	lineTo(x, y) {
		this._append`L${this._x1 = +x},${this._y1 = +y}`;
	}
	quadraticCurveTo(x1, y1, x, y) {
		this._append`Q${+x1},${+y1},${this._x1 = +x},${this._y1 = +y}`;
	}
	bezierCurveTo(x1, y1, x2, y2, x, y) {
		this._append`C${+x1},${+y1},${+x2},${+y2},${this._x1 = +x},${this._y1 = +y}`;
	}
	arcTo(x1, y1, x2, y2, r) {
		x1 = +x1, y1 = +y1, x2 = +x2, y2 = +y2, r = +r;
		if (r < 0) throw new Error(`negative radius: ${r}`);
		let x0 = this._x1, y0 = this._y1, x21 = x2 - x1, y21 = y2 - y1, x01 = x0 - x1, y01 = y0 - y1, l01_2 = x01 * x01 + y01 * y01;
		if (this._x1 === null) this._append`M${this._x1 = x1},${this._y1 = y1}`;
		else if (!(l01_2 > epsilon$2));
		else if (!(Math.abs(y01 * x21 - y21 * x01) > epsilon$2) || !r) this._append`L${this._x1 = x1},${this._y1 = y1}`;
		else {
			let x20 = x2 - x0, y20 = y2 - y0, l21_2 = x21 * x21 + y21 * y21, l20_2 = x20 * x20 + y20 * y20, l21 = Math.sqrt(l21_2), l01 = Math.sqrt(l01_2), l = r * Math.tan((pi$3 - Math.acos((l21_2 + l01_2 - l20_2) / (2 * l21 * l01))) / 2), t01 = l / l01, t21 = l / l21;
			if (Math.abs(t01 - 1) > epsilon$2) this._append`L${x1 + t01 * x01},${y1 + t01 * y01}`;
			this._append`A${r},${r},0,0,${+(y01 * x20 > x01 * y20)},${this._x1 = x1 + t21 * x21},${this._y1 = y1 + t21 * y21}`;
		}
	}
	arc(x, y, r, a0, a1, ccw) {
		x = +x, y = +y, r = +r, ccw = !!ccw;
		if (r < 0) throw new Error(`negative radius: ${r}`);
		let dx = r * Math.cos(a0), dy = r * Math.sin(a0), x0 = x + dx, y0 = y + dy, cw = 1 ^ ccw, da = ccw ? a0 - a1 : a1 - a0;
		if (this._x1 === null) this._append`M${x0},${y0}`;
		else if (Math.abs(this._x1 - x0) > epsilon$2 || Math.abs(this._y1 - y0) > epsilon$2) this._append`L${x0},${y0}`;
		if (!r) return;
		if (da < 0) da = da % tau$3 + tau$3;
		if (da > tauEpsilon) this._append`A${r},${r},0,1,${cw},${x - dx},${y - dy}A${r},${r},0,1,${cw},${this._x1 = x0},${this._y1 = y0}`;
		else if (da > epsilon$2) {
			const x1 = x + r * Math.cos(a1);
			const y1 = y + r * Math.sin(a1);
			if (da >= pi$3 && this._equal(x0, y0, x1, y1)) {
				da /= 2;
				let a00 = a0 + da;
				this._append`A${r},${r},0,${+(da >= pi$3)},${cw},${x + r * Math.cos(a00)},${y + r * Math.sin(a00)}`;
			}
			this._append`A${r},${r},0,${+(da >= pi$3)},${cw},${this._x1 = x1},${this._y1 = y1}`;
		}
	}
	rect(x, y, w, h) {
		this._append`M${this._x0 = this._x1 = +x},${this._y0 = this._y1 = +y}h${w = +w}v${+h}h${-w}Z`;
	}
	toString() {
		return this._;
	}
};
function path() {
	return new Path();
}
path.prototype = Path.prototype;
function pathRound(digits = 3) {
	return new Path(+digits);
}
// node_modules/d3-format/dist/d3-format.mjs
function formatDecimal(x) {
	return Math.abs(x = Math.round(x)) >= 1e21 ? x.toLocaleString("en").replace(/,/g, "") : x.toString(10);
}
function formatDecimalParts(x, p) {
	if (!isFinite(x) || x === 0) return null;
	var i = (x = p ? x.toExponential(p - 1) : x.toExponential()).indexOf("e"), coefficient = x.slice(0, i);
	return [coefficient.length > 1 ? coefficient[0] + coefficient.slice(2) : coefficient, +x.slice(i + 1)];
}
function exponent(x) {
	return x = formatDecimalParts(Math.abs(x)), x ? x[1] : NaN;
}
function formatGroup(grouping, thousands) {
	return function(value, width) {
		var i = value.length, t = [], j = 0, g = grouping[0], length = 0;
		while (i > 0 && g > 0) {
			if (length + g + 1 > width) g = Math.max(1, width - length);
			t.push(value.substring(i -= g, i + g));
			if ((length += g + 1) > width) break;
			g = grouping[j = (j + 1) % grouping.length];
		}
		return t.reverse().join(thousands);
	};
}
function formatNumerals(numerals) {
	return function(value) {
		return value.replace(/[0-9]/g, function(i) {
			return numerals[+i];
		});
	};
}
var re$1 = /^(?:(.)?([<>=^]))?([+\-( ])?([$#])?(0)?(\d+)?(,)?(\.\d+)?(~)?([a-z%])?$/i;
function formatSpecifier(specifier) {
	if (!(match = re$1.exec(specifier))) throw new Error("invalid format: " + specifier);
	var match;
	return new FormatSpecifier({
		fill: match[1],
		align: match[2],
		sign: match[3],
		symbol: match[4],
		zero: match[5],
		width: match[6],
		comma: match[7],
		precision: match[8] && match[8].slice(1),
		trim: match[9],
		type: match[10]
	});
}
formatSpecifier.prototype = FormatSpecifier.prototype;
function FormatSpecifier(specifier) {
	this.fill = specifier.fill === void 0 ? " " : specifier.fill + "";
	this.align = specifier.align === void 0 ? ">" : specifier.align + "";
	this.sign = specifier.sign === void 0 ? "-" : specifier.sign + "";
	this.symbol = specifier.symbol === void 0 ? "" : specifier.symbol + "";
	this.zero = !!specifier.zero;
	this.width = specifier.width === void 0 ? void 0 : +specifier.width;
	this.comma = !!specifier.comma;
	this.precision = specifier.precision === void 0 ? void 0 : +specifier.precision;
	this.trim = !!specifier.trim;
	this.type = specifier.type === void 0 ? "" : specifier.type + "";
}
FormatSpecifier.prototype.toString = function() {
	return this.fill + this.align + this.sign + this.symbol + (this.zero ? "0" : "") + (this.width === void 0 ? "" : Math.max(1, this.width | 0)) + (this.comma ? "," : "") + (this.precision === void 0 ? "" : "." + Math.max(0, this.precision | 0)) + (this.trim ? "~" : "") + this.type;
};
function formatTrim(s) {
	out: for (var n = s.length, i = 1, i0 = -1, i1; i < n; ++i) switch (s[i]) {
		case ".":
			i0 = i1 = i;
			break;
		case "0":
			if (i0 === 0) i0 = i;
			i1 = i;
			break;
		default:
			if (!+s[i]) break out;
			if (i0 > 0) i0 = 0;
	}
	return i0 > 0 ? s.slice(0, i0) + s.slice(i1 + 1) : s;
}
var prefixExponent;
function formatPrefixAuto(x, p) {
	var d = formatDecimalParts(x, p);
	if (!d) return prefixExponent = void 0, x.toPrecision(p);
	var coefficient = d[0], exponent = d[1], i = exponent - (prefixExponent = Math.max(-8, Math.min(8, Math.floor(exponent / 3))) * 3) + 1, n = coefficient.length;
	return i === n ? coefficient : i > n ? coefficient + new Array(i - n + 1).join("0") : i > 0 ? coefficient.slice(0, i) + "." + coefficient.slice(i) : "0." + new Array(1 - i).join("0") + formatDecimalParts(x, Math.max(0, p + i - 1))[0];
}
function formatRounded(x, p) {
	var d = formatDecimalParts(x, p);
	if (!d) return x + "";
	var coefficient = d[0], exponent = d[1];
	return exponent < 0 ? "0." + new Array(-exponent).join("0") + coefficient : coefficient.length > exponent + 1 ? coefficient.slice(0, exponent + 1) + "." + coefficient.slice(exponent + 1) : coefficient + new Array(exponent - coefficient.length + 2).join("0");
}
var formatTypes = {
	"%": (x, p) => (x * 100).toFixed(p),
	"b": (x) => Math.round(x).toString(2),
	"c": (x) => x + "",
	"d": formatDecimal,
	"e": (x, p) => x.toExponential(p),
	"f": (x, p) => x.toFixed(p),
	"g": (x, p) => x.toPrecision(p),
	"o": (x) => Math.round(x).toString(8),
	"p": (x, p) => formatRounded(x * 100, p),
	"r": formatRounded,
	"s": formatPrefixAuto,
	"X": (x) => Math.round(x).toString(16).toUpperCase(),
	"x": (x) => Math.round(x).toString(16)
};
function identity$3(x) {
	return x;
}
var map$2 = Array.prototype.map;
var prefixes = [
	"y",
	"z",
	"a",
	"f",
	"p",
	"n",
	"µ",
	"m",
	"",
	"k",
	"M",
	"G",
	"T",
	"P",
	"E",
	"Z",
	"Y"
];
function formatLocale$1(locale) {
	var group = locale.grouping === void 0 || locale.thousands === void 0 ? identity$3 : formatGroup(map$2.call(locale.grouping, Number), locale.thousands + ""), currencyPrefix = locale.currency === void 0 ? "" : locale.currency[0] + "", currencySuffix = locale.currency === void 0 ? "" : locale.currency[1] + "", decimal = locale.decimal === void 0 ? "." : locale.decimal + "", numerals = locale.numerals === void 0 ? identity$3 : formatNumerals(map$2.call(locale.numerals, String)), percent = locale.percent === void 0 ? "%" : locale.percent + "", minus = locale.minus === void 0 ? "−" : locale.minus + "", nan = locale.nan === void 0 ? "NaN" : locale.nan + "";
	function newFormat(specifier, options) {
		specifier = formatSpecifier(specifier);
		var fill = specifier.fill, align = specifier.align, sign = specifier.sign, symbol = specifier.symbol, zero = specifier.zero, width = specifier.width, comma = specifier.comma, precision = specifier.precision, trim = specifier.trim, type = specifier.type;
		if (type === "n") comma = true, type = "g";
		else if (!formatTypes[type]) precision === void 0 && (precision = 12), trim = true, type = "g";
		if (zero || fill === "0" && align === "=") zero = true, fill = "0", align = "=";
		var prefix = (options && options.prefix !== void 0 ? options.prefix : "") + (symbol === "$" ? currencyPrefix : symbol === "#" && /[boxX]/.test(type) ? "0" + type.toLowerCase() : ""), suffix = (symbol === "$" ? currencySuffix : /[%p]/.test(type) ? percent : "") + (options && options.suffix !== void 0 ? options.suffix : "");
		var formatType = formatTypes[type], maybeSuffix = /[defgprs%]/.test(type);
		precision = precision === void 0 ? 6 : /[gprs]/.test(type) ? Math.max(1, Math.min(21, precision)) : Math.max(0, Math.min(20, precision));
		function format(value) {
			var valuePrefix = prefix, valueSuffix = suffix, i, n, c;
			if (type === "c") {
				valueSuffix = formatType(value) + valueSuffix;
				value = "";
			} else {
				value = +value;
				var valueNegative = value < 0 || 1 / value < 0;
				value = isNaN(value) ? nan : formatType(Math.abs(value), precision);
				if (trim) value = formatTrim(value);
				if (valueNegative && +value === 0 && sign !== "+") valueNegative = false;
				valuePrefix = (valueNegative ? sign === "(" ? sign : minus : sign === "-" || sign === "(" ? "" : sign) + valuePrefix;
				valueSuffix = (type === "s" && !isNaN(value) && prefixExponent !== void 0 ? prefixes[8 + prefixExponent / 3] : "") + valueSuffix + (valueNegative && sign === "(" ? ")" : "");
				if (maybeSuffix) {
					i = -1, n = value.length;
					while (++i < n) if (c = value.charCodeAt(i), 48 > c || c > 57) {
						valueSuffix = (c === 46 ? decimal + value.slice(i + 1) : value.slice(i)) + valueSuffix;
						value = value.slice(0, i);
						break;
					}
				}
			}
			if (comma && !zero) value = group(value, Infinity);
			var length = valuePrefix.length + value.length + valueSuffix.length, padding = length < width ? new Array(width - length + 1).join(fill) : "";
			if (comma && zero) value = group(padding + value, padding.length ? width - valueSuffix.length : Infinity), padding = "";
			switch (align) {
				case "<":
					value = valuePrefix + value + valueSuffix + padding;
					break;
				case "=":
					value = valuePrefix + padding + value + valueSuffix;
					break;
				case "^":
					value = padding.slice(0, length = padding.length >> 1) + valuePrefix + value + valueSuffix + padding.slice(length);
					break;
				default: value = padding + valuePrefix + value + valueSuffix;
			}
			return numerals(value);
		}
		format.toString = function() {
			return specifier + "";
		};
		return format;
	}
	function formatPrefix(specifier, value) {
		var e = Math.max(-8, Math.min(8, Math.floor(exponent(value) / 3))) * 3, k = Math.pow(10, -e), f = newFormat((specifier = formatSpecifier(specifier), specifier.type = "f", specifier), { suffix: prefixes[8 + e / 3] });
		return function(value) {
			return f(k * value);
		};
	}
	return {
		format: newFormat,
		formatPrefix
	};
}
var locale$1;
var format$1;
var formatPrefix;
defaultLocale$1({
	thousands: ",",
	grouping: [3],
	currency: ["$", ""]
});
function defaultLocale$1(definition) {
	locale$1 = formatLocale$1(definition);
	format$1 = locale$1.format;
	formatPrefix = locale$1.formatPrefix;
	return locale$1;
}
function precisionFixed(step) {
	return Math.max(0, -exponent(Math.abs(step)));
}
function precisionPrefix(step, value) {
	return Math.max(0, Math.max(-8, Math.min(8, Math.floor(exponent(value) / 3))) * 3 - exponent(Math.abs(step)));
}
function precisionRound(step, max) {
	step = Math.abs(step), max = Math.abs(max) - step;
	return Math.max(0, exponent(max) - exponent(step)) + 1;
}
// node_modules/d3-geo/dist/d3-geo.mjs
var epsilon$1 = 1e-6;
var epsilon2 = 1e-12;
var pi$2 = Math.PI;
var halfPi$1 = pi$2 / 2;
var quarterPi = pi$2 / 4;
var tau$2 = pi$2 * 2;
var degrees = 180 / pi$2;
var radians$1 = pi$2 / 180;
var abs = Math.abs;
var atan = Math.atan;
var atan2 = Math.atan2;
var cos$1 = Math.cos;
var exp = Math.exp;
var log$1 = Math.log;
var pow$1 = Math.pow;
var sin$1 = Math.sin;
var sign$1 = Math.sign || function(x) {
	return x > 0 ? 1 : x < 0 ? -1 : 0;
};
var sqrt$1 = Math.sqrt;
var tan = Math.tan;
function acos(x) {
	return x > 1 ? 0 : x < -1 ? pi$2 : Math.acos(x);
}
function asin(x) {
	return x > 1 ? halfPi$1 : x < -1 ? -halfPi$1 : Math.asin(x);
}
function noop$1() {}
function streamGeometry(geometry, stream) {
	if (geometry && streamGeometryType.hasOwnProperty(geometry.type)) streamGeometryType[geometry.type](geometry, stream);
}
var streamObjectType = {
	Feature: function(object, stream) {
		streamGeometry(object.geometry, stream);
	},
	FeatureCollection: function(object, stream) {
		var features = object.features, i = -1, n = features.length;
		while (++i < n) streamGeometry(features[i].geometry, stream);
	}
};
var streamGeometryType = {
	Sphere: function(object, stream) {
		stream.sphere();
	},
	Point: function(object, stream) {
		object = object.coordinates;
		stream.point(object[0], object[1], object[2]);
	},
	MultiPoint: function(object, stream) {
		var coordinates = object.coordinates, i = -1, n = coordinates.length;
		while (++i < n) object = coordinates[i], stream.point(object[0], object[1], object[2]);
	},
	LineString: function(object, stream) {
		streamLine(object.coordinates, stream, 0);
	},
	MultiLineString: function(object, stream) {
		var coordinates = object.coordinates, i = -1, n = coordinates.length;
		while (++i < n) streamLine(coordinates[i], stream, 0);
	},
	Polygon: function(object, stream) {
		streamPolygon(object.coordinates, stream);
	},
	MultiPolygon: function(object, stream) {
		var coordinates = object.coordinates, i = -1, n = coordinates.length;
		while (++i < n) streamPolygon(coordinates[i], stream);
	},
	GeometryCollection: function(object, stream) {
		var geometries = object.geometries, i = -1, n = geometries.length;
		while (++i < n) streamGeometry(geometries[i], stream);
	}
};
function streamLine(coordinates, stream, closed) {
	var i = -1, n = coordinates.length - closed, coordinate;
	stream.lineStart();
	while (++i < n) coordinate = coordinates[i], stream.point(coordinate[0], coordinate[1], coordinate[2]);
	stream.lineEnd();
}
function streamPolygon(coordinates, stream) {
	var i = -1, n = coordinates.length;
	stream.polygonStart();
	while (++i < n) streamLine(coordinates[i], stream, 1);
	stream.polygonEnd();
}
function geoStream(object, stream) {
	if (object && streamObjectType.hasOwnProperty(object.type)) streamObjectType[object.type](object, stream);
	else streamGeometry(object, stream);
}
new Adder();
new Adder();
function spherical(cartesian) {
	return [atan2(cartesian[1], cartesian[0]), asin(cartesian[2])];
}
function cartesian(spherical) {
	var lambda = spherical[0], phi = spherical[1], cosPhi = cos$1(phi);
	return [
		cosPhi * cos$1(lambda),
		cosPhi * sin$1(lambda),
		sin$1(phi)
	];
}
function cartesianDot(a, b) {
	return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}
function cartesianCross(a, b) {
	return [
		a[1] * b[2] - a[2] * b[1],
		a[2] * b[0] - a[0] * b[2],
		a[0] * b[1] - a[1] * b[0]
	];
}
function cartesianAddInPlace(a, b) {
	a[0] += b[0], a[1] += b[1], a[2] += b[2];
}
function cartesianScale(vector, k) {
	return [
		vector[0] * k,
		vector[1] * k,
		vector[2] * k
	];
}
function cartesianNormalizeInPlace(d) {
	var l = sqrt$1(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
	d[0] /= l, d[1] /= l, d[2] /= l;
}
function compose(a, b) {
	function compose(x, y) {
		return x = a(x, y), b(x[0], x[1]);
	}
	if (a.invert && b.invert) compose.invert = function(x, y) {
		return x = b.invert(x, y), x && a.invert(x[0], x[1]);
	};
	return compose;
}
function rotationIdentity(lambda, phi) {
	if (abs(lambda) > pi$2) lambda -= Math.round(lambda / tau$2) * tau$2;
	return [lambda, phi];
}
rotationIdentity.invert = rotationIdentity;
function rotateRadians(deltaLambda, deltaPhi, deltaGamma) {
	return (deltaLambda %= tau$2) ? deltaPhi || deltaGamma ? compose(rotationLambda(deltaLambda), rotationPhiGamma(deltaPhi, deltaGamma)) : rotationLambda(deltaLambda) : deltaPhi || deltaGamma ? rotationPhiGamma(deltaPhi, deltaGamma) : rotationIdentity;
}
function forwardRotationLambda(deltaLambda) {
	return function(lambda, phi) {
		lambda += deltaLambda;
		if (abs(lambda) > pi$2) lambda -= Math.round(lambda / tau$2) * tau$2;
		return [lambda, phi];
	};
}
function rotationLambda(deltaLambda) {
	var rotation = forwardRotationLambda(deltaLambda);
	rotation.invert = forwardRotationLambda(-deltaLambda);
	return rotation;
}
function rotationPhiGamma(deltaPhi, deltaGamma) {
	var cosDeltaPhi = cos$1(deltaPhi), sinDeltaPhi = sin$1(deltaPhi), cosDeltaGamma = cos$1(deltaGamma), sinDeltaGamma = sin$1(deltaGamma);
	function rotation(lambda, phi) {
		var cosPhi = cos$1(phi), x = cos$1(lambda) * cosPhi, y = sin$1(lambda) * cosPhi, z = sin$1(phi), k = z * cosDeltaPhi + x * sinDeltaPhi;
		return [atan2(y * cosDeltaGamma - k * sinDeltaGamma, x * cosDeltaPhi - z * sinDeltaPhi), asin(k * cosDeltaGamma + y * sinDeltaGamma)];
	}
	rotation.invert = function(lambda, phi) {
		var cosPhi = cos$1(phi), x = cos$1(lambda) * cosPhi, y = sin$1(lambda) * cosPhi, z = sin$1(phi), k = z * cosDeltaGamma - y * sinDeltaGamma;
		return [atan2(y * cosDeltaGamma + z * sinDeltaGamma, x * cosDeltaPhi + k * sinDeltaPhi), asin(k * cosDeltaPhi - x * sinDeltaPhi)];
	};
	return rotation;
}
function rotation(rotate) {
	rotate = rotateRadians(rotate[0] * radians$1, rotate[1] * radians$1, rotate.length > 2 ? rotate[2] * radians$1 : 0);
	function forward(coordinates) {
		coordinates = rotate(coordinates[0] * radians$1, coordinates[1] * radians$1);
		return coordinates[0] *= degrees, coordinates[1] *= degrees, coordinates;
	}
	forward.invert = function(coordinates) {
		coordinates = rotate.invert(coordinates[0] * radians$1, coordinates[1] * radians$1);
		return coordinates[0] *= degrees, coordinates[1] *= degrees, coordinates;
	};
	return forward;
}
function circleStream(stream, radius, delta, direction, t0, t1) {
	if (!delta) return;
	var cosRadius = cos$1(radius), sinRadius = sin$1(radius), step = direction * delta;
	if (t0 == null) {
		t0 = radius + direction * tau$2;
		t1 = radius - step / 2;
	} else {
		t0 = circleRadius(cosRadius, t0);
		t1 = circleRadius(cosRadius, t1);
		if (direction > 0 ? t0 < t1 : t0 > t1) t0 += direction * tau$2;
	}
	for (var point, t = t0; direction > 0 ? t > t1 : t < t1; t -= step) {
		point = spherical([
			cosRadius,
			-sinRadius * cos$1(t),
			-sinRadius * sin$1(t)
		]);
		stream.point(point[0], point[1]);
	}
}
function circleRadius(cosRadius, point) {
	point = cartesian(point), point[0] -= cosRadius;
	cartesianNormalizeInPlace(point);
	var radius = acos(-point[1]);
	return ((-point[2] < 0 ? -radius : radius) + tau$2 - epsilon$1) % tau$2;
}
function clipBuffer() {
	var lines = [], line;
	return {
		point: function(x, y, m) {
			line.push([
				x,
				y,
				m
			]);
		},
		lineStart: function() {
			lines.push(line = []);
		},
		lineEnd: noop$1,
		rejoin: function() {
			if (lines.length > 1) lines.push(lines.pop().concat(lines.shift()));
		},
		result: function() {
			var result = lines;
			lines = [];
			line = null;
			return result;
		}
	};
}
function pointEqual(a, b) {
	return abs(a[0] - b[0]) < epsilon$1 && abs(a[1] - b[1]) < epsilon$1;
}
function Intersection(point, points, other, entry) {
	this.x = point;
	this.z = points;
	this.o = other;
	this.e = entry;
	this.v = false;
	this.n = this.p = null;
}
function clipRejoin(segments, compareIntersection, startInside, interpolate, stream) {
	var subject = [], clip = [], i, n;
	segments.forEach(function(segment) {
		if ((n = segment.length - 1) <= 0) return;
		var n, p0 = segment[0], p1 = segment[n], x;
		if (pointEqual(p0, p1)) {
			if (!p0[2] && !p1[2]) {
				stream.lineStart();
				for (i = 0; i < n; ++i) stream.point((p0 = segment[i])[0], p0[1]);
				stream.lineEnd();
				return;
			}
			p1[0] += 2 * epsilon$1;
		}
		subject.push(x = new Intersection(p0, segment, null, true));
		clip.push(x.o = new Intersection(p0, null, x, false));
		subject.push(x = new Intersection(p1, segment, null, false));
		clip.push(x.o = new Intersection(p1, null, x, true));
	});
	if (!subject.length) return;
	clip.sort(compareIntersection);
	link(subject);
	link(clip);
	for (i = 0, n = clip.length; i < n; ++i) clip[i].e = startInside = !startInside;
	var start = subject[0], points, point;
	while (1) {
		var current = start, isSubject = true;
		while (current.v) if ((current = current.n) === start) return;
		points = current.z;
		stream.lineStart();
		do {
			current.v = current.o.v = true;
			if (current.e) {
				if (isSubject) for (i = 0, n = points.length; i < n; ++i) stream.point((point = points[i])[0], point[1]);
				else interpolate(current.x, current.n.x, 1, stream);
				current = current.n;
			} else {
				if (isSubject) {
					points = current.p.z;
					for (i = points.length - 1; i >= 0; --i) stream.point((point = points[i])[0], point[1]);
				} else interpolate(current.x, current.p.x, -1, stream);
				current = current.p;
			}
			current = current.o;
			points = current.z;
			isSubject = !isSubject;
		} while (!current.v);
		stream.lineEnd();
	}
}
function link(array) {
	if (!(n = array.length)) return;
	var n, i = 0, a = array[0], b;
	while (++i < n) {
		a.n = b = array[i];
		b.p = a;
		a = b;
	}
	a.n = b = array[0];
	b.p = a;
}
function longitude(point) {
	return abs(point[0]) <= pi$2 ? point[0] : sign$1(point[0]) * ((abs(point[0]) + pi$2) % tau$2 - pi$2);
}
function polygonContains(polygon, point) {
	var lambda = longitude(point), phi = point[1], sinPhi = sin$1(phi), normal = [
		sin$1(lambda),
		-cos$1(lambda),
		0
	], angle = 0, winding = 0;
	var sum = new Adder();
	if (sinPhi === 1) phi = halfPi$1 + epsilon$1;
	else if (sinPhi === -1) phi = -halfPi$1 - epsilon$1;
	for (var i = 0, n = polygon.length; i < n; ++i) {
		if (!(m = (ring = polygon[i]).length)) continue;
		var ring, m, point0 = ring[m - 1], lambda0 = longitude(point0), phi0 = point0[1] / 2 + quarterPi, sinPhi0 = sin$1(phi0), cosPhi0 = cos$1(phi0);
		for (var j = 0; j < m; ++j, lambda0 = lambda1, sinPhi0 = sinPhi1, cosPhi0 = cosPhi1, point0 = point1) {
			var point1 = ring[j], lambda1 = longitude(point1), phi1 = point1[1] / 2 + quarterPi, sinPhi1 = sin$1(phi1), cosPhi1 = cos$1(phi1), delta = lambda1 - lambda0, sign = delta >= 0 ? 1 : -1, absDelta = sign * delta, antimeridian = absDelta > pi$2, k = sinPhi0 * sinPhi1;
			sum.add(atan2(k * sign * sin$1(absDelta), cosPhi0 * cosPhi1 + k * cos$1(absDelta)));
			angle += antimeridian ? delta + sign * tau$2 : delta;
			if (antimeridian ^ lambda0 >= lambda ^ lambda1 >= lambda) {
				var arc = cartesianCross(cartesian(point0), cartesian(point1));
				cartesianNormalizeInPlace(arc);
				var intersection = cartesianCross(normal, arc);
				cartesianNormalizeInPlace(intersection);
				var phiArc = (antimeridian ^ delta >= 0 ? -1 : 1) * asin(intersection[2]);
				if (phi > phiArc || phi === phiArc && (arc[0] || arc[1])) winding += antimeridian ^ delta >= 0 ? 1 : -1;
			}
		}
	}
	return (angle < -epsilon$1 || angle < epsilon$1 && sum < -epsilon2) ^ winding & 1;
}
function clip(pointVisible, clipLine, interpolate, start) {
	return function(sink) {
		var line = clipLine(sink), ringBuffer = clipBuffer(), ringSink = clipLine(ringBuffer), polygonStarted = false, polygon, segments, ring;
		var clip = {
			point,
			lineStart,
			lineEnd,
			polygonStart: function() {
				clip.point = pointRing;
				clip.lineStart = ringStart;
				clip.lineEnd = ringEnd;
				segments = [];
				polygon = [];
			},
			polygonEnd: function() {
				clip.point = point;
				clip.lineStart = lineStart;
				clip.lineEnd = lineEnd;
				segments = merge(segments);
				var startInside = polygonContains(polygon, start);
				if (segments.length) {
					if (!polygonStarted) sink.polygonStart(), polygonStarted = true;
					clipRejoin(segments, compareIntersection, startInside, interpolate, sink);
				} else if (startInside) {
					if (!polygonStarted) sink.polygonStart(), polygonStarted = true;
					sink.lineStart();
					interpolate(null, null, 1, sink);
					sink.lineEnd();
				}
				if (polygonStarted) sink.polygonEnd(), polygonStarted = false;
				segments = polygon = null;
			},
			sphere: function() {
				sink.polygonStart();
				sink.lineStart();
				interpolate(null, null, 1, sink);
				sink.lineEnd();
				sink.polygonEnd();
			}
		};
		function point(lambda, phi) {
			if (pointVisible(lambda, phi)) sink.point(lambda, phi);
		}
		function pointLine(lambda, phi) {
			line.point(lambda, phi);
		}
		function lineStart() {
			clip.point = pointLine;
			line.lineStart();
		}
		function lineEnd() {
			clip.point = point;
			line.lineEnd();
		}
		function pointRing(lambda, phi) {
			ring.push([lambda, phi]);
			ringSink.point(lambda, phi);
		}
		function ringStart() {
			ringSink.lineStart();
			ring = [];
		}
		function ringEnd() {
			pointRing(ring[0][0], ring[0][1]);
			ringSink.lineEnd();
			var clean = ringSink.clean(), ringSegments = ringBuffer.result(), i, n = ringSegments.length, m, segment, point;
			ring.pop();
			polygon.push(ring);
			ring = null;
			if (!n) return;
			if (clean & 1) {
				segment = ringSegments[0];
				if ((m = segment.length - 1) > 0) {
					if (!polygonStarted) sink.polygonStart(), polygonStarted = true;
					sink.lineStart();
					for (i = 0; i < m; ++i) sink.point((point = segment[i])[0], point[1]);
					sink.lineEnd();
				}
				return;
			}
			if (n > 1 && clean & 2) ringSegments.push(ringSegments.pop().concat(ringSegments.shift()));
			segments.push(ringSegments.filter(validSegment));
		}
		return clip;
	};
}
function validSegment(segment) {
	return segment.length > 1;
}
function compareIntersection(a, b) {
	return ((a = a.x)[0] < 0 ? a[1] - halfPi$1 - epsilon$1 : halfPi$1 - a[1]) - ((b = b.x)[0] < 0 ? b[1] - halfPi$1 - epsilon$1 : halfPi$1 - b[1]);
}
var clipAntimeridian = clip(function() {
	return true;
}, clipAntimeridianLine, clipAntimeridianInterpolate, [-pi$2, -halfPi$1]);
function clipAntimeridianLine(stream) {
	var lambda0 = NaN, phi0 = NaN, sign0 = NaN, clean;
	return {
		lineStart: function() {
			stream.lineStart();
			clean = 1;
		},
		point: function(lambda1, phi1) {
			var sign1 = lambda1 > 0 ? pi$2 : -pi$2, delta = abs(lambda1 - lambda0);
			if (abs(delta - pi$2) < epsilon$1) {
				stream.point(lambda0, phi0 = (phi0 + phi1) / 2 > 0 ? halfPi$1 : -halfPi$1);
				stream.point(sign0, phi0);
				stream.lineEnd();
				stream.lineStart();
				stream.point(sign1, phi0);
				stream.point(lambda1, phi0);
				clean = 0;
			} else if (sign0 !== sign1 && delta >= pi$2) {
				if (abs(lambda0 - sign0) < epsilon$1) lambda0 -= sign0 * epsilon$1;
				if (abs(lambda1 - sign1) < epsilon$1) lambda1 -= sign1 * epsilon$1;
				phi0 = clipAntimeridianIntersect(lambda0, phi0, lambda1, phi1);
				stream.point(sign0, phi0);
				stream.lineEnd();
				stream.lineStart();
				stream.point(sign1, phi0);
				clean = 0;
			}
			stream.point(lambda0 = lambda1, phi0 = phi1);
			sign0 = sign1;
		},
		lineEnd: function() {
			stream.lineEnd();
			lambda0 = phi0 = NaN;
		},
		clean: function() {
			return 2 - clean;
		}
	};
}
function clipAntimeridianIntersect(lambda0, phi0, lambda1, phi1) {
	var cosPhi0, cosPhi1, sinLambda0Lambda1 = sin$1(lambda0 - lambda1);
	return abs(sinLambda0Lambda1) > epsilon$1 ? atan((sin$1(phi0) * (cosPhi1 = cos$1(phi1)) * sin$1(lambda1) - sin$1(phi1) * (cosPhi0 = cos$1(phi0)) * sin$1(lambda0)) / (cosPhi0 * cosPhi1 * sinLambda0Lambda1)) : (phi0 + phi1) / 2;
}
function clipAntimeridianInterpolate(from, to, direction, stream) {
	var phi;
	if (from == null) {
		phi = direction * halfPi$1;
		stream.point(-pi$2, phi);
		stream.point(0, phi);
		stream.point(pi$2, phi);
		stream.point(pi$2, 0);
		stream.point(pi$2, -phi);
		stream.point(0, -phi);
		stream.point(-pi$2, -phi);
		stream.point(-pi$2, 0);
		stream.point(-pi$2, phi);
	} else if (abs(from[0] - to[0]) > epsilon$1) {
		var lambda = from[0] < to[0] ? pi$2 : -pi$2;
		phi = direction * lambda / 2;
		stream.point(-lambda, phi);
		stream.point(0, phi);
		stream.point(lambda, phi);
	} else stream.point(to[0], to[1]);
}
function clipCircle(radius) {
	var cr = cos$1(radius), delta = 2 * radians$1, smallRadius = cr > 0, notHemisphere = abs(cr) > epsilon$1;
	function interpolate(from, to, direction, stream) {
		circleStream(stream, radius, delta, direction, from, to);
	}
	function visible(lambda, phi) {
		return cos$1(lambda) * cos$1(phi) > cr;
	}
	function clipLine(stream) {
		var point0, c0, v0, v00, clean;
		return {
			lineStart: function() {
				v00 = v0 = false;
				clean = 1;
			},
			point: function(lambda, phi) {
				var point1 = [lambda, phi], point2, v = visible(lambda, phi), c = smallRadius ? v ? 0 : code(lambda, phi) : v ? code(lambda + (lambda < 0 ? pi$2 : -pi$2), phi) : 0;
				if (!point0 && (v00 = v0 = v)) stream.lineStart();
				if (v !== v0) {
					point2 = intersect(point0, point1);
					if (!point2 || pointEqual(point0, point2) || pointEqual(point1, point2)) point1[2] = 1;
				}
				if (v !== v0) {
					clean = 0;
					if (v) {
						stream.lineStart();
						point2 = intersect(point1, point0);
						stream.point(point2[0], point2[1]);
					} else {
						point2 = intersect(point0, point1);
						stream.point(point2[0], point2[1], 2);
						stream.lineEnd();
					}
					point0 = point2;
				} else if (notHemisphere && point0 && smallRadius ^ v) {
					var t;
					if (!(c & c0) && (t = intersect(point1, point0, true))) {
						clean = 0;
						if (smallRadius) {
							stream.lineStart();
							stream.point(t[0][0], t[0][1]);
							stream.point(t[1][0], t[1][1]);
							stream.lineEnd();
						} else {
							stream.point(t[1][0], t[1][1]);
							stream.lineEnd();
							stream.lineStart();
							stream.point(t[0][0], t[0][1], 3);
						}
					}
				}
				if (v && (!point0 || !pointEqual(point0, point1))) stream.point(point1[0], point1[1]);
				point0 = point1, v0 = v, c0 = c;
			},
			lineEnd: function() {
				if (v0) stream.lineEnd();
				point0 = null;
			},
			clean: function() {
				return clean | (v00 && v0) << 1;
			}
		};
	}
	function intersect(a, b, two) {
		var pa = cartesian(a), pb = cartesian(b);
		var n1 = [
			1,
			0,
			0
		], n2 = cartesianCross(pa, pb), n2n2 = cartesianDot(n2, n2), n1n2 = n2[0], determinant = n2n2 - n1n2 * n1n2;
		if (!determinant) return !two && a;
		var c1 = cr * n2n2 / determinant, c2 = -cr * n1n2 / determinant, n1xn2 = cartesianCross(n1, n2), A = cartesianScale(n1, c1);
		cartesianAddInPlace(A, cartesianScale(n2, c2));
		var u = n1xn2, w = cartesianDot(A, u), uu = cartesianDot(u, u), t2 = w * w - uu * (cartesianDot(A, A) - 1);
		if (t2 < 0) return;
		var t = sqrt$1(t2), q = cartesianScale(u, (-w - t) / uu);
		cartesianAddInPlace(q, A);
		q = spherical(q);
		if (!two) return q;
		var lambda0 = a[0], lambda1 = b[0], phi0 = a[1], phi1 = b[1], z;
		if (lambda1 < lambda0) z = lambda0, lambda0 = lambda1, lambda1 = z;
		var delta = lambda1 - lambda0, polar = abs(delta - pi$2) < epsilon$1, meridian = polar || delta < epsilon$1;
		if (!polar && phi1 < phi0) z = phi0, phi0 = phi1, phi1 = z;
		if (meridian ? polar ? phi0 + phi1 > 0 ^ q[1] < (abs(q[0] - lambda0) < epsilon$1 ? phi0 : phi1) : phi0 <= q[1] && q[1] <= phi1 : delta > pi$2 ^ (lambda0 <= q[0] && q[0] <= lambda1)) {
			var q1 = cartesianScale(u, (-w + t) / uu);
			cartesianAddInPlace(q1, A);
			return [q, spherical(q1)];
		}
	}
	function code(lambda, phi) {
		var r = smallRadius ? radius : pi$2 - radius, code = 0;
		if (lambda < -r) code |= 1;
		else if (lambda > r) code |= 2;
		if (phi < -r) code |= 4;
		else if (phi > r) code |= 8;
		return code;
	}
	return clip(visible, clipLine, interpolate, smallRadius ? [0, -radius] : [-pi$2, radius - pi$2]);
}
function clipLine(a, b, x0, y0, x1, y1) {
	var ax = a[0], ay = a[1], bx = b[0], by = b[1], t0 = 0, t1 = 1, dx = bx - ax, dy = by - ay, r = x0 - ax;
	if (!dx && r > 0) return;
	r /= dx;
	if (dx < 0) {
		if (r < t0) return;
		if (r < t1) t1 = r;
	} else if (dx > 0) {
		if (r > t1) return;
		if (r > t0) t0 = r;
	}
	r = x1 - ax;
	if (!dx && r < 0) return;
	r /= dx;
	if (dx < 0) {
		if (r > t1) return;
		if (r > t0) t0 = r;
	} else if (dx > 0) {
		if (r < t0) return;
		if (r < t1) t1 = r;
	}
	r = y0 - ay;
	if (!dy && r > 0) return;
	r /= dy;
	if (dy < 0) {
		if (r < t0) return;
		if (r < t1) t1 = r;
	} else if (dy > 0) {
		if (r > t1) return;
		if (r > t0) t0 = r;
	}
	r = y1 - ay;
	if (!dy && r < 0) return;
	r /= dy;
	if (dy < 0) {
		if (r > t1) return;
		if (r > t0) t0 = r;
	} else if (dy > 0) {
		if (r < t0) return;
		if (r < t1) t1 = r;
	}
	if (t0 > 0) a[0] = ax + t0 * dx, a[1] = ay + t0 * dy;
	if (t1 < 1) b[0] = ax + t1 * dx, b[1] = ay + t1 * dy;
	return true;
}
var clipMax = 1e9;
var clipMin = -clipMax;
function clipRectangle(x0, y0, x1, y1) {
	function visible(x, y) {
		return x0 <= x && x <= x1 && y0 <= y && y <= y1;
	}
	function interpolate(from, to, direction, stream) {
		var a = 0, a1 = 0;
		if (from == null || (a = corner(from, direction)) !== (a1 = corner(to, direction)) || comparePoint(from, to) < 0 ^ direction > 0) do
			stream.point(a === 0 || a === 3 ? x0 : x1, a > 1 ? y1 : y0);
		while ((a = (a + direction + 4) % 4) !== a1);
		else stream.point(to[0], to[1]);
	}
	function corner(p, direction) {
		return abs(p[0] - x0) < epsilon$1 ? direction > 0 ? 0 : 3 : abs(p[0] - x1) < epsilon$1 ? direction > 0 ? 2 : 1 : abs(p[1] - y0) < epsilon$1 ? direction > 0 ? 1 : 0 : direction > 0 ? 3 : 2;
	}
	function compareIntersection(a, b) {
		return comparePoint(a.x, b.x);
	}
	function comparePoint(a, b) {
		var ca = corner(a, 1), cb = corner(b, 1);
		return ca !== cb ? ca - cb : ca === 0 ? b[1] - a[1] : ca === 1 ? a[0] - b[0] : ca === 2 ? a[1] - b[1] : b[0] - a[0];
	}
	return function(stream) {
		var activeStream = stream, bufferStream = clipBuffer(), segments, polygon, ring, x__, y__, v__, x_, y_, v_, first, clean;
		var clipStream = {
			point,
			lineStart,
			lineEnd,
			polygonStart,
			polygonEnd
		};
		function point(x, y) {
			if (visible(x, y)) activeStream.point(x, y);
		}
		function polygonInside() {
			var winding = 0;
			for (var i = 0, n = polygon.length; i < n; ++i) for (var ring = polygon[i], j = 1, m = ring.length, point = ring[0], a0, a1, b0 = point[0], b1 = point[1]; j < m; ++j) {
				a0 = b0, a1 = b1, point = ring[j], b0 = point[0], b1 = point[1];
				if (a1 <= y1) {
					if (b1 > y1 && (b0 - a0) * (y1 - a1) > (b1 - a1) * (x0 - a0)) ++winding;
				} else if (b1 <= y1 && (b0 - a0) * (y1 - a1) < (b1 - a1) * (x0 - a0)) --winding;
			}
			return winding;
		}
		function polygonStart() {
			activeStream = bufferStream, segments = [], polygon = [], clean = true;
		}
		function polygonEnd() {
			var startInside = polygonInside(), cleanInside = clean && startInside, visible = (segments = merge(segments)).length;
			if (cleanInside || visible) {
				stream.polygonStart();
				if (cleanInside) {
					stream.lineStart();
					interpolate(null, null, 1, stream);
					stream.lineEnd();
				}
				if (visible) clipRejoin(segments, compareIntersection, startInside, interpolate, stream);
				stream.polygonEnd();
			}
			activeStream = stream, segments = polygon = ring = null;
		}
		function lineStart() {
			clipStream.point = linePoint;
			if (polygon) polygon.push(ring = []);
			first = true;
			v_ = false;
			x_ = y_ = NaN;
		}
		function lineEnd() {
			if (segments) {
				linePoint(x__, y__);
				if (v__ && v_) bufferStream.rejoin();
				segments.push(bufferStream.result());
			}
			clipStream.point = point;
			if (v_) activeStream.lineEnd();
		}
		function linePoint(x, y) {
			var v = visible(x, y);
			if (polygon) ring.push([x, y]);
			if (first) {
				x__ = x, y__ = y, v__ = v;
				first = false;
				if (v) {
					activeStream.lineStart();
					activeStream.point(x, y);
				}
			} else if (v && v_) activeStream.point(x, y);
			else {
				var a = [x_ = Math.max(clipMin, Math.min(clipMax, x_)), y_ = Math.max(clipMin, Math.min(clipMax, y_))], b = [x = Math.max(clipMin, Math.min(clipMax, x)), y = Math.max(clipMin, Math.min(clipMax, y))];
				if (clipLine(a, b, x0, y0, x1, y1)) {
					if (!v_) {
						activeStream.lineStart();
						activeStream.point(a[0], a[1]);
					}
					activeStream.point(b[0], b[1]);
					if (!v) activeStream.lineEnd();
					clean = false;
				} else if (v) {
					activeStream.lineStart();
					activeStream.point(x, y);
					clean = false;
				}
			}
			x_ = x, y_ = y, v_ = v;
		}
		return clipStream;
	};
}
var identity$1$2 = (x) => x;
var areaSum = new Adder();
var areaRingSum = new Adder();
var x00$2;
var y00$2;
var x0$3;
var y0$3;
var areaStream = {
	point: noop$1,
	lineStart: noop$1,
	lineEnd: noop$1,
	polygonStart: function() {
		areaStream.lineStart = areaRingStart;
		areaStream.lineEnd = areaRingEnd;
	},
	polygonEnd: function() {
		areaStream.lineStart = areaStream.lineEnd = areaStream.point = noop$1;
		areaSum.add(abs(areaRingSum));
		areaRingSum = new Adder();
	},
	result: function() {
		var area = areaSum / 2;
		areaSum = new Adder();
		return area;
	}
};
function areaRingStart() {
	areaStream.point = areaPointFirst;
}
function areaPointFirst(x, y) {
	areaStream.point = areaPoint;
	x00$2 = x0$3 = x, y00$2 = y0$3 = y;
}
function areaPoint(x, y) {
	areaRingSum.add(y0$3 * x - x0$3 * y);
	x0$3 = x, y0$3 = y;
}
function areaRingEnd() {
	areaPoint(x00$2, y00$2);
}
var x0$2 = Infinity;
var y0$2 = x0$2;
var x1 = -x0$2;
var y1 = x1;
var boundsStream = {
	point: boundsPoint,
	lineStart: noop$1,
	lineEnd: noop$1,
	polygonStart: noop$1,
	polygonEnd: noop$1,
	result: function() {
		var bounds = [[x0$2, y0$2], [x1, y1]];
		x1 = y1 = -(y0$2 = x0$2 = Infinity);
		return bounds;
	}
};
function boundsPoint(x, y) {
	if (x < x0$2) x0$2 = x;
	if (x > x1) x1 = x;
	if (y < y0$2) y0$2 = y;
	if (y > y1) y1 = y;
}
var X0 = 0;
var Y0 = 0;
var Z0 = 0;
var X1 = 0;
var Y1 = 0;
var Z1 = 0;
var X2 = 0;
var Y2 = 0;
var Z2 = 0;
var x00$1;
var y00$1;
var x0$1;
var y0$1;
var centroidStream = {
	point: centroidPoint,
	lineStart: centroidLineStart,
	lineEnd: centroidLineEnd,
	polygonStart: function() {
		centroidStream.lineStart = centroidRingStart;
		centroidStream.lineEnd = centroidRingEnd;
	},
	polygonEnd: function() {
		centroidStream.point = centroidPoint;
		centroidStream.lineStart = centroidLineStart;
		centroidStream.lineEnd = centroidLineEnd;
	},
	result: function() {
		var centroid = Z2 ? [X2 / Z2, Y2 / Z2] : Z1 ? [X1 / Z1, Y1 / Z1] : Z0 ? [X0 / Z0, Y0 / Z0] : [NaN, NaN];
		X0 = Y0 = Z0 = X1 = Y1 = Z1 = X2 = Y2 = Z2 = 0;
		return centroid;
	}
};
function centroidPoint(x, y) {
	X0 += x;
	Y0 += y;
	++Z0;
}
function centroidLineStart() {
	centroidStream.point = centroidPointFirstLine;
}
function centroidPointFirstLine(x, y) {
	centroidStream.point = centroidPointLine;
	centroidPoint(x0$1 = x, y0$1 = y);
}
function centroidPointLine(x, y) {
	var dx = x - x0$1, dy = y - y0$1, z = sqrt$1(dx * dx + dy * dy);
	X1 += z * (x0$1 + x) / 2;
	Y1 += z * (y0$1 + y) / 2;
	Z1 += z;
	centroidPoint(x0$1 = x, y0$1 = y);
}
function centroidLineEnd() {
	centroidStream.point = centroidPoint;
}
function centroidRingStart() {
	centroidStream.point = centroidPointFirstRing;
}
function centroidRingEnd() {
	centroidPointRing(x00$1, y00$1);
}
function centroidPointFirstRing(x, y) {
	centroidStream.point = centroidPointRing;
	centroidPoint(x00$1 = x0$1 = x, y00$1 = y0$1 = y);
}
function centroidPointRing(x, y) {
	var dx = x - x0$1, dy = y - y0$1, z = sqrt$1(dx * dx + dy * dy);
	X1 += z * (x0$1 + x) / 2;
	Y1 += z * (y0$1 + y) / 2;
	Z1 += z;
	z = y0$1 * x - x0$1 * y;
	X2 += z * (x0$1 + x);
	Y2 += z * (y0$1 + y);
	Z2 += z * 3;
	centroidPoint(x0$1 = x, y0$1 = y);
}
function PathContext(context) {
	this._context = context;
}
PathContext.prototype = {
	_radius: 4.5,
	pointRadius: function(_) {
		return this._radius = _, this;
	},
	polygonStart: function() {
		this._line = 0;
	},
	polygonEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._point = 0;
	},
	lineEnd: function() {
		if (this._line === 0) this._context.closePath();
		this._point = NaN;
	},
	point: function(x, y) {
		switch (this._point) {
			case 0:
				this._context.moveTo(x, y);
				this._point = 1;
				break;
			case 1:
				this._context.lineTo(x, y);
				break;
			default:
				this._context.moveTo(x + this._radius, y);
				this._context.arc(x, y, this._radius, 0, tau$2);
		}
	},
	result: noop$1
};
var lengthSum = new Adder();
var lengthRing;
var x00;
var y00;
var x0;
var y0;
var lengthStream = {
	point: noop$1,
	lineStart: function() {
		lengthStream.point = lengthPointFirst;
	},
	lineEnd: function() {
		if (lengthRing) lengthPoint(x00, y00);
		lengthStream.point = noop$1;
	},
	polygonStart: function() {
		lengthRing = true;
	},
	polygonEnd: function() {
		lengthRing = null;
	},
	result: function() {
		var length = +lengthSum;
		lengthSum = new Adder();
		return length;
	}
};
function lengthPointFirst(x, y) {
	lengthStream.point = lengthPoint;
	x00 = x0 = x, y00 = y0 = y;
}
function lengthPoint(x, y) {
	x0 -= x, y0 -= y;
	lengthSum.add(sqrt$1(x0 * x0 + y0 * y0));
	x0 = x, y0 = y;
}
var cacheDigits;
var cacheAppend;
var cacheRadius;
var cacheCircle;
var PathString = class {
	constructor(digits) {
		this._append = digits == null ? append : appendRound(digits);
		this._radius = 4.5;
		this._ = "";
	}
	pointRadius(_) {
		this._radius = +_;
		return this;
	}
	polygonStart() {
		this._line = 0;
	}
	polygonEnd() {
		this._line = NaN;
	}
	lineStart() {
		this._point = 0;
	}
	lineEnd() {
		if (this._line === 0) this._ += "Z";
		this._point = NaN;
	}
	point(x, y) {
		switch (this._point) {
			case 0:
				this._append`M${x},${y}`;
				this._point = 1;
				break;
			case 1:
				this._append`L${x},${y}`;
				break;
			default:
				this._append`M${x},${y}`;
				if (this._radius !== cacheRadius || this._append !== cacheAppend) {
					const r = this._radius;
					const s = this._;
					this._ = "";
					this._append`m0,${r}a${r},${r} 0 1,1 0,${-2 * r}a${r},${r} 0 1,1 0,${2 * r}z`;
					cacheRadius = r;
					cacheAppend = this._append;
					cacheCircle = this._;
					this._ = s;
				}
				this._ += cacheCircle;
		}
	}
	result() {
		const result = this._;
		this._ = "";
		return result.length ? result : null;
	}
};
function append(strings) {
	let i = 1;
	this._ += strings[0];
	for (const j = strings.length; i < j; ++i) this._ += arguments[i] + strings[i];
}
function appendRound(digits) {
	const d = Math.floor(digits);
	if (!(d >= 0)) throw new RangeError(`invalid digits: ${digits}`);
	if (d > 15) return append;
	if (d !== cacheDigits) {
		const k = 10 ** d;
		cacheDigits = d;
		cacheAppend = function append(strings) {
			let i = 1;
			this._ += strings[0];
			for (const j = strings.length; i < j; ++i) this._ += Math.round(arguments[i] * k) / k + strings[i];
		};
	}
	return cacheAppend;
}
function index(projection, context) {
	let digits = 3, pointRadius = 4.5, projectionStream, contextStream;
	function path(object) {
		if (object) {
			if (typeof pointRadius === "function") contextStream.pointRadius(+pointRadius.apply(this, arguments));
			geoStream(object, projectionStream(contextStream));
		}
		return contextStream.result();
	}
	path.area = function(object) {
		geoStream(object, projectionStream(areaStream));
		return areaStream.result();
	};
	path.measure = function(object) {
		geoStream(object, projectionStream(lengthStream));
		return lengthStream.result();
	};
	path.bounds = function(object) {
		geoStream(object, projectionStream(boundsStream));
		return boundsStream.result();
	};
	path.centroid = function(object) {
		geoStream(object, projectionStream(centroidStream));
		return centroidStream.result();
	};
	path.projection = function(_) {
		if (!arguments.length) return projection;
		projectionStream = _ == null ? (projection = null, identity$1$2) : (projection = _).stream;
		return path;
	};
	path.context = function(_) {
		if (!arguments.length) return context;
		contextStream = _ == null ? (context = null, new PathString(digits)) : new PathContext(context = _);
		if (typeof pointRadius !== "function") contextStream.pointRadius(pointRadius);
		return path;
	};
	path.pointRadius = function(_) {
		if (!arguments.length) return pointRadius;
		pointRadius = typeof _ === "function" ? _ : (contextStream.pointRadius(+_), +_);
		return path;
	};
	path.digits = function(_) {
		if (!arguments.length) return digits;
		if (_ == null) digits = null;
		else {
			const d = Math.floor(_);
			if (!(d >= 0)) throw new RangeError(`invalid digits: ${_}`);
			digits = d;
		}
		if (context === null) contextStream = new PathString(digits);
		return path;
	};
	return path.projection(projection).digits(digits).context(context);
}
function transform(methods) {
	return { stream: transformer$1(methods) };
}
function transformer$1(methods) {
	return function(stream) {
		var s = new TransformStream();
		for (var key in methods) s[key] = methods[key];
		s.stream = stream;
		return s;
	};
}
function TransformStream() {}
TransformStream.prototype = {
	constructor: TransformStream,
	point: function(x, y) {
		this.stream.point(x, y);
	},
	sphere: function() {
		this.stream.sphere();
	},
	lineStart: function() {
		this.stream.lineStart();
	},
	lineEnd: function() {
		this.stream.lineEnd();
	},
	polygonStart: function() {
		this.stream.polygonStart();
	},
	polygonEnd: function() {
		this.stream.polygonEnd();
	}
};
function fit(projection, fitBounds, object) {
	var clip = projection.clipExtent && projection.clipExtent();
	projection.scale(150).translate([0, 0]);
	if (clip != null) projection.clipExtent(null);
	geoStream(object, projection.stream(boundsStream));
	fitBounds(boundsStream.result());
	if (clip != null) projection.clipExtent(clip);
	return projection;
}
function fitExtent(projection, extent, object) {
	return fit(projection, function(b) {
		var w = extent[1][0] - extent[0][0], h = extent[1][1] - extent[0][1], k = Math.min(w / (b[1][0] - b[0][0]), h / (b[1][1] - b[0][1])), x = +extent[0][0] + (w - k * (b[1][0] + b[0][0])) / 2, y = +extent[0][1] + (h - k * (b[1][1] + b[0][1])) / 2;
		projection.scale(150 * k).translate([x, y]);
	}, object);
}
function fitSize(projection, size, object) {
	return fitExtent(projection, [[0, 0], size], object);
}
function fitWidth(projection, width, object) {
	return fit(projection, function(b) {
		var w = +width, k = w / (b[1][0] - b[0][0]), x = (w - k * (b[1][0] + b[0][0])) / 2, y = -k * b[0][1];
		projection.scale(150 * k).translate([x, y]);
	}, object);
}
function fitHeight(projection, height, object) {
	return fit(projection, function(b) {
		var h = +height, k = h / (b[1][1] - b[0][1]), x = -k * b[0][0], y = (h - k * (b[1][1] + b[0][1])) / 2;
		projection.scale(150 * k).translate([x, y]);
	}, object);
}
var maxDepth = 16;
var cosMinDistance = cos$1(30 * radians$1);
function resample(project, delta2) {
	return +delta2 ? resample$1(project, delta2) : resampleNone(project);
}
function resampleNone(project) {
	return transformer$1({ point: function(x, y) {
		x = project(x, y);
		this.stream.point(x[0], x[1]);
	} });
}
function resample$1(project, delta2) {
	function resampleLineTo(x0, y0, lambda0, a0, b0, c0, x1, y1, lambda1, a1, b1, c1, depth, stream) {
		var dx = x1 - x0, dy = y1 - y0, d2 = dx * dx + dy * dy;
		if (d2 > 4 * delta2 && depth--) {
			var a = a0 + a1, b = b0 + b1, c = c0 + c1, m = sqrt$1(a * a + b * b + c * c), phi2 = asin(c /= m), lambda2 = abs(abs(c) - 1) < epsilon$1 || abs(lambda0 - lambda1) < epsilon$1 ? (lambda0 + lambda1) / 2 : atan2(b, a), p = project(lambda2, phi2), x2 = p[0], y2 = p[1], dx2 = x2 - x0, dy2 = y2 - y0, dz = dy * dx2 - dx * dy2;
			if (dz * dz / d2 > delta2 || abs((dx * dx2 + dy * dy2) / d2 - .5) > .3 || a0 * a1 + b0 * b1 + c0 * c1 < cosMinDistance) {
				resampleLineTo(x0, y0, lambda0, a0, b0, c0, x2, y2, lambda2, a /= m, b /= m, c, depth, stream);
				stream.point(x2, y2);
				resampleLineTo(x2, y2, lambda2, a, b, c, x1, y1, lambda1, a1, b1, c1, depth, stream);
			}
		}
	}
	return function(stream) {
		var lambda00, x00, y00, a00, b00, c00, lambda0, x0, y0, a0, b0, c0;
		var resampleStream = {
			point,
			lineStart,
			lineEnd,
			polygonStart: function() {
				stream.polygonStart();
				resampleStream.lineStart = ringStart;
			},
			polygonEnd: function() {
				stream.polygonEnd();
				resampleStream.lineStart = lineStart;
			}
		};
		function point(x, y) {
			x = project(x, y);
			stream.point(x[0], x[1]);
		}
		function lineStart() {
			x0 = NaN;
			resampleStream.point = linePoint;
			stream.lineStart();
		}
		function linePoint(lambda, phi) {
			var c = cartesian([lambda, phi]), p = project(lambda, phi);
			resampleLineTo(x0, y0, lambda0, a0, b0, c0, x0 = p[0], y0 = p[1], lambda0 = lambda, a0 = c[0], b0 = c[1], c0 = c[2], maxDepth, stream);
			stream.point(x0, y0);
		}
		function lineEnd() {
			resampleStream.point = point;
			stream.lineEnd();
		}
		function ringStart() {
			lineStart();
			resampleStream.point = ringPoint;
			resampleStream.lineEnd = ringEnd;
		}
		function ringPoint(lambda, phi) {
			linePoint(lambda00 = lambda, phi), x00 = x0, y00 = y0, a00 = a0, b00 = b0, c00 = c0;
			resampleStream.point = linePoint;
		}
		function ringEnd() {
			resampleLineTo(x0, y0, lambda0, a0, b0, c0, x00, y00, lambda00, a00, b00, c00, maxDepth, stream);
			resampleStream.lineEnd = lineEnd;
			lineEnd();
		}
		return resampleStream;
	};
}
var transformRadians = transformer$1({ point: function(x, y) {
	this.stream.point(x * radians$1, y * radians$1);
} });
function transformRotate(rotate) {
	return transformer$1({ point: function(x, y) {
		var r = rotate(x, y);
		return this.stream.point(r[0], r[1]);
	} });
}
function scaleTranslate(k, dx, dy, sx, sy) {
	function transform(x, y) {
		x *= sx;
		y *= sy;
		return [dx + k * x, dy - k * y];
	}
	transform.invert = function(x, y) {
		return [(x - dx) / k * sx, (dy - y) / k * sy];
	};
	return transform;
}
function scaleTranslateRotate(k, dx, dy, sx, sy, alpha) {
	if (!alpha) return scaleTranslate(k, dx, dy, sx, sy);
	var cosAlpha = cos$1(alpha), sinAlpha = sin$1(alpha), a = cosAlpha * k, b = sinAlpha * k, ai = cosAlpha / k, bi = sinAlpha / k, ci = (sinAlpha * dy - cosAlpha * dx) / k, fi = (sinAlpha * dx + cosAlpha * dy) / k;
	function transform(x, y) {
		x *= sx;
		y *= sy;
		return [a * x - b * y + dx, dy - b * x - a * y];
	}
	transform.invert = function(x, y) {
		return [sx * (ai * x - bi * y + ci), sy * (fi - bi * x - ai * y)];
	};
	return transform;
}
function projection$1(project) {
	return projectionMutator(function() {
		return project;
	})();
}
function projectionMutator(projectAt) {
	var project, k = 150, x = 480, y = 250, lambda = 0, phi = 0, deltaLambda = 0, deltaPhi = 0, deltaGamma = 0, rotate, alpha = 0, sx = 1, sy = 1, theta = null, preclip = clipAntimeridian, x0 = null, y0, x1, y1, postclip = identity$1$2, delta2 = .5, projectResample, projectTransform, projectRotateTransform, cache, cacheStream;
	function projection(point) {
		return projectRotateTransform(point[0] * radians$1, point[1] * radians$1);
	}
	function invert(point) {
		point = projectRotateTransform.invert(point[0], point[1]);
		return point && [point[0] * degrees, point[1] * degrees];
	}
	projection.stream = function(stream) {
		return cache && cacheStream === stream ? cache : cache = transformRadians(transformRotate(rotate)(preclip(projectResample(postclip(cacheStream = stream)))));
	};
	projection.preclip = function(_) {
		return arguments.length ? (preclip = _, theta = void 0, reset()) : preclip;
	};
	projection.postclip = function(_) {
		return arguments.length ? (postclip = _, x0 = y0 = x1 = y1 = null, reset()) : postclip;
	};
	projection.clipAngle = function(_) {
		return arguments.length ? (preclip = +_ ? clipCircle(theta = _ * radians$1) : (theta = null, clipAntimeridian), reset()) : theta * degrees;
	};
	projection.clipExtent = function(_) {
		return arguments.length ? (postclip = _ == null ? (x0 = y0 = x1 = y1 = null, identity$1$2) : clipRectangle(x0 = +_[0][0], y0 = +_[0][1], x1 = +_[1][0], y1 = +_[1][1]), reset()) : x0 == null ? null : [[x0, y0], [x1, y1]];
	};
	projection.scale = function(_) {
		return arguments.length ? (k = +_, recenter()) : k;
	};
	projection.translate = function(_) {
		return arguments.length ? (x = +_[0], y = +_[1], recenter()) : [x, y];
	};
	projection.center = function(_) {
		return arguments.length ? (lambda = _[0] % 360 * radians$1, phi = _[1] % 360 * radians$1, recenter()) : [lambda * degrees, phi * degrees];
	};
	projection.rotate = function(_) {
		return arguments.length ? (deltaLambda = _[0] % 360 * radians$1, deltaPhi = _[1] % 360 * radians$1, deltaGamma = _.length > 2 ? _[2] % 360 * radians$1 : 0, recenter()) : [
			deltaLambda * degrees,
			deltaPhi * degrees,
			deltaGamma * degrees
		];
	};
	projection.angle = function(_) {
		return arguments.length ? (alpha = _ % 360 * radians$1, recenter()) : alpha * degrees;
	};
	projection.reflectX = function(_) {
		return arguments.length ? (sx = _ ? -1 : 1, recenter()) : sx < 0;
	};
	projection.reflectY = function(_) {
		return arguments.length ? (sy = _ ? -1 : 1, recenter()) : sy < 0;
	};
	projection.precision = function(_) {
		return arguments.length ? (projectResample = resample(projectTransform, delta2 = _ * _), reset()) : sqrt$1(delta2);
	};
	projection.fitExtent = function(extent, object) {
		return fitExtent(projection, extent, object);
	};
	projection.fitSize = function(size, object) {
		return fitSize(projection, size, object);
	};
	projection.fitWidth = function(width, object) {
		return fitWidth(projection, width, object);
	};
	projection.fitHeight = function(height, object) {
		return fitHeight(projection, height, object);
	};
	function recenter() {
		var center = scaleTranslateRotate(k, 0, 0, sx, sy, alpha).apply(null, project(lambda, phi)), transform = scaleTranslateRotate(k, x - center[0], y - center[1], sx, sy, alpha);
		rotate = rotateRadians(deltaLambda, deltaPhi, deltaGamma);
		projectTransform = compose(project, transform);
		projectRotateTransform = compose(rotate, projectTransform);
		projectResample = resample(projectTransform, delta2);
		return reset();
	}
	function reset() {
		cache = cacheStream = null;
		return projection;
	}
	return function() {
		project = projectAt.apply(this, arguments);
		projection.invert = project.invert && invert;
		return recenter();
	};
}
function conicProjection$1(projectAt) {
	var phi0 = 0, phi1 = pi$2 / 3, m = projectionMutator(projectAt), p = m(phi0, phi1);
	p.parallels = function(_) {
		return arguments.length ? m(phi0 = _[0] * radians$1, phi1 = _[1] * radians$1) : [phi0 * degrees, phi1 * degrees];
	};
	return p;
}
function cylindricalEqualAreaRaw(phi0) {
	var cosPhi0 = cos$1(phi0);
	function forward(lambda, phi) {
		return [lambda * cosPhi0, sin$1(phi) / cosPhi0];
	}
	forward.invert = function(x, y) {
		return [x / cosPhi0, asin(y * cosPhi0)];
	};
	return forward;
}
function conicEqualAreaRaw(y0, y1) {
	var sy0 = sin$1(y0), n = (sy0 + sin$1(y1)) / 2;
	if (abs(n) < epsilon$1) return cylindricalEqualAreaRaw(y0);
	var c = 1 + sy0 * (2 * n - sy0), r0 = sqrt$1(c) / n;
	function project(x, y) {
		var r = sqrt$1(c - 2 * n * sin$1(y)) / n;
		return [r * sin$1(x *= n), r0 - r * cos$1(x)];
	}
	project.invert = function(x, y) {
		var r0y = r0 - y, l = atan2(x, abs(r0y)) * sign$1(r0y);
		if (r0y * n < 0) l -= pi$2 * sign$1(x) * sign$1(r0y);
		return [l / n, asin((c - (x * x + r0y * r0y) * n * n) / (2 * n))];
	};
	return project;
}
function conicEqualArea() {
	return conicProjection$1(conicEqualAreaRaw).scale(155.424).center([0, 33.6442]);
}
function albers() {
	return conicEqualArea().parallels([29.5, 45.5]).scale(1070).translate([480, 250]).rotate([96, 0]).center([-.6, 38.7]);
}
function multiplex(streams) {
	var n = streams.length;
	return {
		point: function(x, y) {
			var i = -1;
			while (++i < n) streams[i].point(x, y);
		},
		sphere: function() {
			var i = -1;
			while (++i < n) streams[i].sphere();
		},
		lineStart: function() {
			var i = -1;
			while (++i < n) streams[i].lineStart();
		},
		lineEnd: function() {
			var i = -1;
			while (++i < n) streams[i].lineEnd();
		},
		polygonStart: function() {
			var i = -1;
			while (++i < n) streams[i].polygonStart();
		},
		polygonEnd: function() {
			var i = -1;
			while (++i < n) streams[i].polygonEnd();
		}
	};
}
function albersUsa() {
	var cache, cacheStream, lower48 = albers(), lower48Point, alaska = conicEqualArea().rotate([154, 0]).center([-2, 58.5]).parallels([55, 65]), alaskaPoint, hawaii = conicEqualArea().rotate([157, 0]).center([-3, 19.9]).parallels([8, 18]), hawaiiPoint, point, pointStream = { point: function(x, y) {
		point = [x, y];
	} };
	function albersUsa(coordinates) {
		var x = coordinates[0], y = coordinates[1];
		return point = null, (lower48Point.point(x, y), point) || (alaskaPoint.point(x, y), point) || (hawaiiPoint.point(x, y), point);
	}
	albersUsa.invert = function(coordinates) {
		var k = lower48.scale(), t = lower48.translate(), x = (coordinates[0] - t[0]) / k, y = (coordinates[1] - t[1]) / k;
		return (y >= .12 && y < .234 && x >= -.425 && x < -.214 ? alaska : y >= .166 && y < .234 && x >= -.214 && x < -.115 ? hawaii : lower48).invert(coordinates);
	};
	albersUsa.stream = function(stream) {
		return cache && cacheStream === stream ? cache : cache = multiplex([
			lower48.stream(cacheStream = stream),
			alaska.stream(stream),
			hawaii.stream(stream)
		]);
	};
	albersUsa.precision = function(_) {
		if (!arguments.length) return lower48.precision();
		lower48.precision(_), alaska.precision(_), hawaii.precision(_);
		return reset();
	};
	albersUsa.scale = function(_) {
		if (!arguments.length) return lower48.scale();
		lower48.scale(_), alaska.scale(_ * .35), hawaii.scale(_);
		return albersUsa.translate(lower48.translate());
	};
	albersUsa.translate = function(_) {
		if (!arguments.length) return lower48.translate();
		var k = lower48.scale(), x = +_[0], y = +_[1];
		lower48Point = lower48.translate(_).clipExtent([[x - .455 * k, y - .238 * k], [x + .455 * k, y + .238 * k]]).stream(pointStream);
		alaskaPoint = alaska.translate([x - .307 * k, y + .201 * k]).clipExtent([[x - .425 * k + epsilon$1, y + .12 * k + epsilon$1], [x - .214 * k - epsilon$1, y + .234 * k - epsilon$1]]).stream(pointStream);
		hawaiiPoint = hawaii.translate([x - .205 * k, y + .212 * k]).clipExtent([[x - .214 * k + epsilon$1, y + .166 * k + epsilon$1], [x - .115 * k - epsilon$1, y + .234 * k - epsilon$1]]).stream(pointStream);
		return reset();
	};
	albersUsa.fitExtent = function(extent, object) {
		return fitExtent(albersUsa, extent, object);
	};
	albersUsa.fitSize = function(size, object) {
		return fitSize(albersUsa, size, object);
	};
	albersUsa.fitWidth = function(width, object) {
		return fitWidth(albersUsa, width, object);
	};
	albersUsa.fitHeight = function(height, object) {
		return fitHeight(albersUsa, height, object);
	};
	function reset() {
		cache = cacheStream = null;
		return albersUsa;
	}
	return albersUsa.scale(1070);
}
function azimuthalRaw(scale) {
	return function(x, y) {
		var cx = cos$1(x), cy = cos$1(y), k = scale(cx * cy);
		if (k === Infinity) return [2, 0];
		return [k * cy * sin$1(x), k * sin$1(y)];
	};
}
function azimuthalInvert(angle) {
	return function(x, y) {
		var z = sqrt$1(x * x + y * y), c = angle(z), sc = sin$1(c), cc = cos$1(c);
		return [atan2(x * sc, z * cc), asin(z && y * sc / z)];
	};
}
var azimuthalEqualAreaRaw = azimuthalRaw(function(cxcy) {
	return sqrt$1(2 / (1 + cxcy));
});
azimuthalEqualAreaRaw.invert = azimuthalInvert(function(z) {
	return 2 * asin(z / 2);
});
function azimuthalEqualArea() {
	return projection$1(azimuthalEqualAreaRaw).scale(124.75).clipAngle(179.999);
}
var azimuthalEquidistantRaw = azimuthalRaw(function(c) {
	return (c = acos(c)) && c / sin$1(c);
});
azimuthalEquidistantRaw.invert = azimuthalInvert(function(z) {
	return z;
});
function azimuthalEquidistant() {
	return projection$1(azimuthalEquidistantRaw).scale(79.4188).clipAngle(179.999);
}
function mercatorRaw(lambda, phi) {
	return [lambda, log$1(tan((halfPi$1 + phi) / 2))];
}
mercatorRaw.invert = function(x, y) {
	return [x, 2 * atan(exp(y)) - halfPi$1];
};
function mercator() {
	return mercatorProjection(mercatorRaw).scale(961 / tau$2);
}
function mercatorProjection(project) {
	var m = projection$1(project), center = m.center, scale = m.scale, translate = m.translate, clipExtent = m.clipExtent, x0 = null, y0, x1, y1;
	m.scale = function(_) {
		return arguments.length ? (scale(_), reclip()) : scale();
	};
	m.translate = function(_) {
		return arguments.length ? (translate(_), reclip()) : translate();
	};
	m.center = function(_) {
		return arguments.length ? (center(_), reclip()) : center();
	};
	m.clipExtent = function(_) {
		return arguments.length ? (_ == null ? x0 = y0 = x1 = y1 = null : (x0 = +_[0][0], y0 = +_[0][1], x1 = +_[1][0], y1 = +_[1][1]), reclip()) : x0 == null ? null : [[x0, y0], [x1, y1]];
	};
	function reclip() {
		var k = pi$2 * scale(), t = m(rotation(m.rotate()).invert([0, 0]));
		return clipExtent(x0 == null ? [[t[0] - k, t[1] - k], [t[0] + k, t[1] + k]] : project === mercatorRaw ? [[Math.max(t[0] - k, x0), y0], [Math.min(t[0] + k, x1), y1]] : [[x0, Math.max(t[1] - k, y0)], [x1, Math.min(t[1] + k, y1)]]);
	}
	return reclip();
}
function tany(y) {
	return tan((halfPi$1 + y) / 2);
}
function conicConformalRaw(y0, y1) {
	var cy0 = cos$1(y0), n = y0 === y1 ? sin$1(y0) : log$1(cy0 / cos$1(y1)) / log$1(tany(y1) / tany(y0)), f = cy0 * pow$1(tany(y0), n) / n;
	if (!n) return mercatorRaw;
	function project(x, y) {
		if (f > 0) {
			if (y < -halfPi$1 + epsilon$1) y = -halfPi$1 + epsilon$1;
		} else if (y > halfPi$1 - epsilon$1) y = halfPi$1 - epsilon$1;
		var r = f / pow$1(tany(y), n);
		return [r * sin$1(n * x), f - r * cos$1(n * x)];
	}
	project.invert = function(x, y) {
		var fy = f - y, r = sign$1(n) * sqrt$1(x * x + fy * fy), l = atan2(x, abs(fy)) * sign$1(fy);
		if (fy * n < 0) l -= pi$2 * sign$1(x) * sign$1(fy);
		return [l / n, 2 * atan(pow$1(f / r, 1 / n)) - halfPi$1];
	};
	return project;
}
function conicConformal() {
	return conicProjection$1(conicConformalRaw).scale(109.5).parallels([30, 30]);
}
function equirectangularRaw(lambda, phi) {
	return [lambda, phi];
}
equirectangularRaw.invert = equirectangularRaw;
function equirectangular() {
	return projection$1(equirectangularRaw).scale(152.63);
}
function conicEquidistantRaw(y0, y1) {
	var cy0 = cos$1(y0), n = y0 === y1 ? sin$1(y0) : (cy0 - cos$1(y1)) / (y1 - y0), g = cy0 / n + y0;
	if (abs(n) < epsilon$1) return equirectangularRaw;
	function project(x, y) {
		var gy = g - y, nx = n * x;
		return [gy * sin$1(nx), g - gy * cos$1(nx)];
	}
	project.invert = function(x, y) {
		var gy = g - y, l = atan2(x, abs(gy)) * sign$1(gy);
		if (gy * n < 0) l -= pi$2 * sign$1(x) * sign$1(gy);
		return [l / n, g - sign$1(n) * sqrt$1(x * x + gy * gy)];
	};
	return project;
}
function conicEquidistant() {
	return conicProjection$1(conicEquidistantRaw).scale(131.154).center([0, 13.9389]);
}
var A1 = 1.340264;
var A2 = -.081106;
var A3 = 893e-6;
var A4 = .003796;
var M = sqrt$1(3) / 2;
var iterations = 12;
function equalEarthRaw(lambda, phi) {
	var l = asin(M * sin$1(phi)), l2 = l * l, l6 = l2 * l2 * l2;
	return [lambda * cos$1(l) / (M * (A1 + 3 * A2 * l2 + l6 * (7 * A3 + 9 * A4 * l2))), l * (A1 + A2 * l2 + l6 * (A3 + A4 * l2))];
}
equalEarthRaw.invert = function(x, y) {
	var l = y, l2 = l * l, l6 = l2 * l2 * l2;
	for (var i = 0, delta, fy, fpy; i < iterations; ++i) {
		fy = l * (A1 + A2 * l2 + l6 * (A3 + A4 * l2)) - y;
		fpy = A1 + 3 * A2 * l2 + l6 * (7 * A3 + 9 * A4 * l2);
		l -= delta = fy / fpy, l2 = l * l, l6 = l2 * l2 * l2;
		if (abs(delta) < epsilon2) break;
	}
	return [M * x * (A1 + 3 * A2 * l2 + l6 * (7 * A3 + 9 * A4 * l2)) / cos$1(l), asin(sin$1(l) / M)];
};
function equalEarth() {
	return projection$1(equalEarthRaw).scale(177.158);
}
function gnomonicRaw(x, y) {
	var cy = cos$1(y), k = cos$1(x) * cy;
	return [cy * sin$1(x) / k, sin$1(y) / k];
}
gnomonicRaw.invert = azimuthalInvert(atan);
function gnomonic() {
	return projection$1(gnomonicRaw).scale(144.049).clipAngle(60);
}
function naturalEarth1Raw(lambda, phi) {
	var phi2 = phi * phi, phi4 = phi2 * phi2;
	return [lambda * (.8707 - .131979 * phi2 + phi4 * (-.013791 + phi4 * (.003971 * phi2 - .001529 * phi4))), phi * (1.007226 + phi2 * (.015085 + phi4 * (-.044475 + .028874 * phi2 - .005916 * phi4)))];
}
naturalEarth1Raw.invert = function(x, y) {
	var phi = y, i = 25, delta;
	do {
		var phi2 = phi * phi, phi4 = phi2 * phi2;
		phi -= delta = (phi * (1.007226 + phi2 * (.015085 + phi4 * (-.044475 + .028874 * phi2 - .005916 * phi4))) - y) / (1.007226 + phi2 * (.045255 + phi4 * (-.311325 + .259866 * phi2 - .005916 * 11 * phi4)));
	} while (abs(delta) > epsilon$1 && --i > 0);
	return [x / (.8707 + (phi2 = phi * phi) * (-.131979 + phi2 * (-.013791 + phi2 * phi2 * phi2 * (.003971 - .001529 * phi2)))), phi];
};
function orthographicRaw(x, y) {
	return [cos$1(y) * sin$1(x), sin$1(y)];
}
orthographicRaw.invert = azimuthalInvert(asin);
function orthographic() {
	return projection$1(orthographicRaw).scale(249.5).clipAngle(90 + epsilon$1);
}
function stereographicRaw(x, y) {
	var cy = cos$1(y), k = 1 + cos$1(x) * cy;
	return [cy * sin$1(x) / k, sin$1(y) / k];
}
stereographicRaw.invert = azimuthalInvert(function(z) {
	return 2 * atan(z);
});
function stereographic() {
	return projection$1(stereographicRaw).scale(250).clipAngle(142);
}
function transverseMercatorRaw(lambda, phi) {
	return [log$1(tan((halfPi$1 + phi) / 2)), -lambda];
}
transverseMercatorRaw.invert = function(x, y) {
	return [-y, 2 * atan(exp(x)) - halfPi$1];
};
function transverseMercator() {
	var m = mercatorProjection(transverseMercatorRaw), center = m.center, rotate = m.rotate;
	m.center = function(_) {
		return arguments.length ? center([-_[1], _[0]]) : (_ = center(), [_[1], -_[0]]);
	};
	m.rotate = function(_) {
		return arguments.length ? rotate([
			_[0],
			_[1],
			_.length > 2 ? _[2] + 90 : 90
		]) : (_ = rotate(), [
			_[0],
			_[1],
			_[2] - 90
		]);
	};
	return rotate([
		0,
		0,
		90
	]).scale(159.155);
}
// node_modules/d3-time/dist/d3-time.mjs
var t0 = /* @__PURE__ */ new Date();
var t1 = /* @__PURE__ */ new Date();
function timeInterval$1(floori, offseti, count, field) {
	function interval(date) {
		return floori(date = arguments.length === 0 ? /* @__PURE__ */ new Date() : /* @__PURE__ */ new Date(+date)), date;
	}
	interval.floor = (date) => {
		return floori(date = /* @__PURE__ */ new Date(+date)), date;
	};
	interval.ceil = (date) => {
		return floori(date = /* @__PURE__ */ new Date(date - 1)), offseti(date, 1), floori(date), date;
	};
	interval.round = (date) => {
		const d0 = interval(date), d1 = interval.ceil(date);
		return date - d0 < d1 - date ? d0 : d1;
	};
	interval.offset = (date, step) => {
		return offseti(date = /* @__PURE__ */ new Date(+date), step == null ? 1 : Math.floor(step)), date;
	};
	interval.range = (start, stop, step) => {
		const range = [];
		start = interval.ceil(start);
		step = step == null ? 1 : Math.floor(step);
		if (!(start < stop) || !(step > 0)) return range;
		let previous;
		do
			range.push(previous = /* @__PURE__ */ new Date(+start)), offseti(start, step), floori(start);
		while (previous < start && start < stop);
		return range;
	};
	interval.filter = (test) => {
		return timeInterval$1((date) => {
			if (date >= date) while (floori(date), !test(date)) date.setTime(date - 1);
		}, (date, step) => {
			if (date >= date) {
				if (step < 0) while (++step <= 0) while (offseti(date, -1), !test(date));
				else while (--step >= 0) while (offseti(date, 1), !test(date));
			}
		});
	};
	if (count) {
		interval.count = (start, end) => {
			t0.setTime(+start), t1.setTime(+end);
			floori(t0), floori(t1);
			return Math.floor(count(t0, t1));
		};
		interval.every = (step) => {
			step = Math.floor(step);
			return !isFinite(step) || !(step > 0) ? null : !(step > 1) ? interval : interval.filter(field ? (d) => field(d) % step === 0 : (d) => interval.count(0, d) % step === 0);
		};
	}
	return interval;
}
var millisecond = timeInterval$1(() => {}, (date, step) => {
	date.setTime(+date + step);
}, (start, end) => {
	return end - start;
});
millisecond.every = (k) => {
	k = Math.floor(k);
	if (!isFinite(k) || !(k > 0)) return null;
	if (!(k > 1)) return millisecond;
	return timeInterval$1((date) => {
		date.setTime(Math.floor(date / k) * k);
	}, (date, step) => {
		date.setTime(+date + step * k);
	}, (start, end) => {
		return (end - start) / k;
	});
};
millisecond.range;
var durationSecond$1 = 1e3;
var durationMinute$1 = durationSecond$1 * 60;
var durationHour$1 = durationMinute$1 * 60;
var durationDay$1 = durationHour$1 * 24;
var durationWeek$1 = durationDay$1 * 7;
var durationMonth$1 = durationDay$1 * 30;
var durationYear$1 = durationDay$1 * 365;
var second$1 = timeInterval$1((date) => {
	date.setTime(date - date.getMilliseconds());
}, (date, step) => {
	date.setTime(+date + step * durationSecond$1);
}, (start, end) => {
	return (end - start) / durationSecond$1;
}, (date) => {
	return date.getUTCSeconds();
});
second$1.range;
var timeMinute = timeInterval$1((date) => {
	date.setTime(date - date.getMilliseconds() - date.getSeconds() * durationSecond$1);
}, (date, step) => {
	date.setTime(+date + step * durationMinute$1);
}, (start, end) => {
	return (end - start) / durationMinute$1;
}, (date) => {
	return date.getMinutes();
});
timeMinute.range;
var utcMinute = timeInterval$1((date) => {
	date.setUTCSeconds(0, 0);
}, (date, step) => {
	date.setTime(+date + step * durationMinute$1);
}, (start, end) => {
	return (end - start) / durationMinute$1;
}, (date) => {
	return date.getUTCMinutes();
});
utcMinute.range;
var timeHour = timeInterval$1((date) => {
	date.setTime(date - date.getMilliseconds() - date.getSeconds() * durationSecond$1 - date.getMinutes() * durationMinute$1);
}, (date, step) => {
	date.setTime(+date + step * durationHour$1);
}, (start, end) => {
	return (end - start) / durationHour$1;
}, (date) => {
	return date.getHours();
});
timeHour.range;
var utcHour = timeInterval$1((date) => {
	date.setUTCMinutes(0, 0, 0);
}, (date, step) => {
	date.setTime(+date + step * durationHour$1);
}, (start, end) => {
	return (end - start) / durationHour$1;
}, (date) => {
	return date.getUTCHours();
});
utcHour.range;
var timeDay = timeInterval$1((date) => date.setHours(0, 0, 0, 0), (date, step) => date.setDate(date.getDate() + step), (start, end) => (end - start - (end.getTimezoneOffset() - start.getTimezoneOffset()) * durationMinute$1) / durationDay$1, (date) => date.getDate() - 1);
timeDay.range;
var utcDay = timeInterval$1((date) => {
	date.setUTCHours(0, 0, 0, 0);
}, (date, step) => {
	date.setUTCDate(date.getUTCDate() + step);
}, (start, end) => {
	return (end - start) / durationDay$1;
}, (date) => {
	return date.getUTCDate() - 1;
});
utcDay.range;
var unixDay = timeInterval$1((date) => {
	date.setUTCHours(0, 0, 0, 0);
}, (date, step) => {
	date.setUTCDate(date.getUTCDate() + step);
}, (start, end) => {
	return (end - start) / durationDay$1;
}, (date) => {
	return Math.floor(date / durationDay$1);
});
unixDay.range;
function timeWeekday(i) {
	return timeInterval$1((date) => {
		date.setDate(date.getDate() - (date.getDay() + 7 - i) % 7);
		date.setHours(0, 0, 0, 0);
	}, (date, step) => {
		date.setDate(date.getDate() + step * 7);
	}, (start, end) => {
		return (end - start - (end.getTimezoneOffset() - start.getTimezoneOffset()) * durationMinute$1) / durationWeek$1;
	});
}
var timeSunday = timeWeekday(0);
var timeMonday = timeWeekday(1);
var timeTuesday = timeWeekday(2);
var timeWednesday = timeWeekday(3);
var timeThursday = timeWeekday(4);
var timeFriday = timeWeekday(5);
var timeSaturday = timeWeekday(6);
timeSunday.range;
timeMonday.range;
timeTuesday.range;
timeWednesday.range;
timeThursday.range;
timeFriday.range;
timeSaturday.range;
function utcWeekday(i) {
	return timeInterval$1((date) => {
		date.setUTCDate(date.getUTCDate() - (date.getUTCDay() + 7 - i) % 7);
		date.setUTCHours(0, 0, 0, 0);
	}, (date, step) => {
		date.setUTCDate(date.getUTCDate() + step * 7);
	}, (start, end) => {
		return (end - start) / durationWeek$1;
	});
}
var utcSunday = utcWeekday(0);
var utcMonday = utcWeekday(1);
var utcTuesday = utcWeekday(2);
var utcWednesday = utcWeekday(3);
var utcThursday = utcWeekday(4);
var utcFriday = utcWeekday(5);
var utcSaturday = utcWeekday(6);
utcSunday.range;
utcMonday.range;
utcTuesday.range;
utcWednesday.range;
utcThursday.range;
utcFriday.range;
utcSaturday.range;
var timeMonth = timeInterval$1((date) => {
	date.setDate(1);
	date.setHours(0, 0, 0, 0);
}, (date, step) => {
	date.setMonth(date.getMonth() + step);
}, (start, end) => {
	return end.getMonth() - start.getMonth() + (end.getFullYear() - start.getFullYear()) * 12;
}, (date) => {
	return date.getMonth();
});
timeMonth.range;
var utcMonth = timeInterval$1((date) => {
	date.setUTCDate(1);
	date.setUTCHours(0, 0, 0, 0);
}, (date, step) => {
	date.setUTCMonth(date.getUTCMonth() + step);
}, (start, end) => {
	return end.getUTCMonth() - start.getUTCMonth() + (end.getUTCFullYear() - start.getUTCFullYear()) * 12;
}, (date) => {
	return date.getUTCMonth();
});
utcMonth.range;
var timeYear = timeInterval$1((date) => {
	date.setMonth(0, 1);
	date.setHours(0, 0, 0, 0);
}, (date, step) => {
	date.setFullYear(date.getFullYear() + step);
}, (start, end) => {
	return end.getFullYear() - start.getFullYear();
}, (date) => {
	return date.getFullYear();
});
timeYear.every = (k) => {
	return !isFinite(k = Math.floor(k)) || !(k > 0) ? null : timeInterval$1((date) => {
		date.setFullYear(Math.floor(date.getFullYear() / k) * k);
		date.setMonth(0, 1);
		date.setHours(0, 0, 0, 0);
	}, (date, step) => {
		date.setFullYear(date.getFullYear() + step * k);
	});
};
timeYear.range;
var utcYear = timeInterval$1((date) => {
	date.setUTCMonth(0, 1);
	date.setUTCHours(0, 0, 0, 0);
}, (date, step) => {
	date.setUTCFullYear(date.getUTCFullYear() + step);
}, (start, end) => {
	return end.getUTCFullYear() - start.getUTCFullYear();
}, (date) => {
	return date.getUTCFullYear();
});
utcYear.every = (k) => {
	return !isFinite(k = Math.floor(k)) || !(k > 0) ? null : timeInterval$1((date) => {
		date.setUTCFullYear(Math.floor(date.getUTCFullYear() / k) * k);
		date.setUTCMonth(0, 1);
		date.setUTCHours(0, 0, 0, 0);
	}, (date, step) => {
		date.setUTCFullYear(date.getUTCFullYear() + step * k);
	});
};
utcYear.range;
function ticker(year, month, week, day, hour, minute) {
	const tickIntervals = [
		[
			second$1,
			1,
			durationSecond$1
		],
		[
			second$1,
			5,
			5 * durationSecond$1
		],
		[
			second$1,
			15,
			15 * durationSecond$1
		],
		[
			second$1,
			30,
			30 * durationSecond$1
		],
		[
			minute,
			1,
			durationMinute$1
		],
		[
			minute,
			5,
			5 * durationMinute$1
		],
		[
			minute,
			15,
			15 * durationMinute$1
		],
		[
			minute,
			30,
			30 * durationMinute$1
		],
		[
			hour,
			1,
			durationHour$1
		],
		[
			hour,
			3,
			3 * durationHour$1
		],
		[
			hour,
			6,
			6 * durationHour$1
		],
		[
			hour,
			12,
			12 * durationHour$1
		],
		[
			day,
			1,
			durationDay$1
		],
		[
			day,
			2,
			2 * durationDay$1
		],
		[
			week,
			1,
			durationWeek$1
		],
		[
			month,
			1,
			durationMonth$1
		],
		[
			month,
			3,
			3 * durationMonth$1
		],
		[
			year,
			1,
			durationYear$1
		]
	];
	function ticks(start, stop, count) {
		const reverse = stop < start;
		if (reverse) [start, stop] = [stop, start];
		const interval = count && typeof count.range === "function" ? count : tickInterval(start, stop, count);
		const ticks = interval ? interval.range(start, +stop + 1) : [];
		return reverse ? ticks.reverse() : ticks;
	}
	function tickInterval(start, stop, count) {
		const target = Math.abs(stop - start) / count;
		const i = bisector(([, , step]) => step).right(tickIntervals, target);
		if (i === tickIntervals.length) return year.every(tickStep(start / durationYear$1, stop / durationYear$1, count));
		if (i === 0) return millisecond.every(Math.max(tickStep(start, stop, count), 1));
		const [t, step] = tickIntervals[target / tickIntervals[i - 1][2] < tickIntervals[i][2] / target ? i - 1 : i];
		return t.every(step);
	}
	return [ticks, tickInterval];
}
var [utcTicks, utcTickInterval] = ticker(utcYear, utcMonth, utcSunday, unixDay, utcHour, utcMinute);
var [timeTicks, timeTickInterval] = ticker(timeYear, timeMonth, timeSunday, timeDay, timeHour, timeMinute);
// node_modules/d3-time-format/dist/d3-time-format.mjs
function localDate(d) {
	if (0 <= d.y && d.y < 100) {
		var date = new Date(-1, d.m, d.d, d.H, d.M, d.S, d.L);
		date.setFullYear(d.y);
		return date;
	}
	return new Date(d.y, d.m, d.d, d.H, d.M, d.S, d.L);
}
function utcDate(d) {
	if (0 <= d.y && d.y < 100) {
		var date = new Date(Date.UTC(-1, d.m, d.d, d.H, d.M, d.S, d.L));
		date.setUTCFullYear(d.y);
		return date;
	}
	return new Date(Date.UTC(d.y, d.m, d.d, d.H, d.M, d.S, d.L));
}
function newDate(y, m, d) {
	return {
		y,
		m,
		d,
		H: 0,
		M: 0,
		S: 0,
		L: 0
	};
}
function formatLocale(locale) {
	var locale_dateTime = locale.dateTime, locale_date = locale.date, locale_time = locale.time, locale_periods = locale.periods, locale_weekdays = locale.days, locale_shortWeekdays = locale.shortDays, locale_months = locale.months, locale_shortMonths = locale.shortMonths;
	var periodRe = formatRe(locale_periods), periodLookup = formatLookup(locale_periods), weekdayRe = formatRe(locale_weekdays), weekdayLookup = formatLookup(locale_weekdays), shortWeekdayRe = formatRe(locale_shortWeekdays), shortWeekdayLookup = formatLookup(locale_shortWeekdays), monthRe = formatRe(locale_months), monthLookup = formatLookup(locale_months), shortMonthRe = formatRe(locale_shortMonths), shortMonthLookup = formatLookup(locale_shortMonths);
	var formats = {
		"a": formatShortWeekday,
		"A": formatWeekday,
		"b": formatShortMonth,
		"B": formatMonth,
		"c": null,
		"d": formatDayOfMonth,
		"e": formatDayOfMonth,
		"f": formatMicroseconds,
		"g": formatYearISO,
		"G": formatFullYearISO,
		"H": formatHour24,
		"I": formatHour12,
		"j": formatDayOfYear,
		"L": formatMilliseconds,
		"m": formatMonthNumber,
		"M": formatMinutes,
		"p": formatPeriod,
		"q": formatQuarter,
		"Q": formatUnixTimestamp,
		"s": formatUnixTimestampSeconds,
		"S": formatSeconds,
		"u": formatWeekdayNumberMonday,
		"U": formatWeekNumberSunday,
		"V": formatWeekNumberISO,
		"w": formatWeekdayNumberSunday,
		"W": formatWeekNumberMonday,
		"x": null,
		"X": null,
		"y": formatYear$1,
		"Y": formatFullYear,
		"Z": formatZone,
		"%": formatLiteralPercent
	};
	var utcFormats = {
		"a": formatUTCShortWeekday,
		"A": formatUTCWeekday,
		"b": formatUTCShortMonth,
		"B": formatUTCMonth,
		"c": null,
		"d": formatUTCDayOfMonth,
		"e": formatUTCDayOfMonth,
		"f": formatUTCMicroseconds,
		"g": formatUTCYearISO,
		"G": formatUTCFullYearISO,
		"H": formatUTCHour24,
		"I": formatUTCHour12,
		"j": formatUTCDayOfYear,
		"L": formatUTCMilliseconds,
		"m": formatUTCMonthNumber,
		"M": formatUTCMinutes,
		"p": formatUTCPeriod,
		"q": formatUTCQuarter,
		"Q": formatUnixTimestamp,
		"s": formatUnixTimestampSeconds,
		"S": formatUTCSeconds,
		"u": formatUTCWeekdayNumberMonday,
		"U": formatUTCWeekNumberSunday,
		"V": formatUTCWeekNumberISO,
		"w": formatUTCWeekdayNumberSunday,
		"W": formatUTCWeekNumberMonday,
		"x": null,
		"X": null,
		"y": formatUTCYear,
		"Y": formatUTCFullYear,
		"Z": formatUTCZone,
		"%": formatLiteralPercent
	};
	var parses = {
		"a": parseShortWeekday,
		"A": parseWeekday,
		"b": parseShortMonth,
		"B": parseMonth,
		"c": parseLocaleDateTime,
		"d": parseDayOfMonth,
		"e": parseDayOfMonth,
		"f": parseMicroseconds,
		"g": parseYear,
		"G": parseFullYear,
		"H": parseHour24,
		"I": parseHour24,
		"j": parseDayOfYear,
		"L": parseMilliseconds,
		"m": parseMonthNumber,
		"M": parseMinutes,
		"p": parsePeriod,
		"q": parseQuarter,
		"Q": parseUnixTimestamp,
		"s": parseUnixTimestampSeconds,
		"S": parseSeconds,
		"u": parseWeekdayNumberMonday,
		"U": parseWeekNumberSunday,
		"V": parseWeekNumberISO,
		"w": parseWeekdayNumberSunday,
		"W": parseWeekNumberMonday,
		"x": parseLocaleDate,
		"X": parseLocaleTime,
		"y": parseYear,
		"Y": parseFullYear,
		"Z": parseZone,
		"%": parseLiteralPercent
	};
	formats.x = newFormat(locale_date, formats);
	formats.X = newFormat(locale_time, formats);
	formats.c = newFormat(locale_dateTime, formats);
	utcFormats.x = newFormat(locale_date, utcFormats);
	utcFormats.X = newFormat(locale_time, utcFormats);
	utcFormats.c = newFormat(locale_dateTime, utcFormats);
	function newFormat(specifier, formats) {
		return function(date) {
			var string = [], i = -1, j = 0, n = specifier.length, c, pad, format;
			if (!(date instanceof Date)) date = /* @__PURE__ */ new Date(+date);
			while (++i < n) if (specifier.charCodeAt(i) === 37) {
				string.push(specifier.slice(j, i));
				if ((pad = pads[c = specifier.charAt(++i)]) != null) c = specifier.charAt(++i);
				else pad = c === "e" ? " " : "0";
				if (format = formats[c]) c = format(date, pad);
				string.push(c);
				j = i + 1;
			}
			string.push(specifier.slice(j, i));
			return string.join("");
		};
	}
	function newParse(specifier, Z) {
		return function(string) {
			var d = newDate(1900, void 0, 1), i = parseSpecifier(d, specifier, string += "", 0), week, day;
			if (i != string.length) return null;
			if ("Q" in d) return new Date(d.Q);
			if ("s" in d) return new Date(d.s * 1e3 + ("L" in d ? d.L : 0));
			if (Z && !("Z" in d)) d.Z = 0;
			if ("p" in d) d.H = d.H % 12 + d.p * 12;
			if (d.m === void 0) d.m = "q" in d ? d.q : 0;
			if ("V" in d) {
				if (d.V < 1 || d.V > 53) return null;
				if (!("w" in d)) d.w = 1;
				if ("Z" in d) {
					week = utcDate(newDate(d.y, 0, 1)), day = week.getUTCDay();
					week = day > 4 || day === 0 ? utcMonday.ceil(week) : utcMonday(week);
					week = utcDay.offset(week, (d.V - 1) * 7);
					d.y = week.getUTCFullYear();
					d.m = week.getUTCMonth();
					d.d = week.getUTCDate() + (d.w + 6) % 7;
				} else {
					week = localDate(newDate(d.y, 0, 1)), day = week.getDay();
					week = day > 4 || day === 0 ? timeMonday.ceil(week) : timeMonday(week);
					week = timeDay.offset(week, (d.V - 1) * 7);
					d.y = week.getFullYear();
					d.m = week.getMonth();
					d.d = week.getDate() + (d.w + 6) % 7;
				}
			} else if ("W" in d || "U" in d) {
				if (!("w" in d)) d.w = "u" in d ? d.u % 7 : "W" in d ? 1 : 0;
				day = "Z" in d ? utcDate(newDate(d.y, 0, 1)).getUTCDay() : localDate(newDate(d.y, 0, 1)).getDay();
				d.m = 0;
				d.d = "W" in d ? (d.w + 6) % 7 + d.W * 7 - (day + 5) % 7 : d.w + d.U * 7 - (day + 6) % 7;
			}
			if ("Z" in d) {
				d.H += d.Z / 100 | 0;
				d.M += d.Z % 100;
				return utcDate(d);
			}
			return localDate(d);
		};
	}
	function parseSpecifier(d, specifier, string, j) {
		var i = 0, n = specifier.length, m = string.length, c, parse;
		while (i < n) {
			if (j >= m) return -1;
			c = specifier.charCodeAt(i++);
			if (c === 37) {
				c = specifier.charAt(i++);
				parse = parses[c in pads ? specifier.charAt(i++) : c];
				if (!parse || (j = parse(d, string, j)) < 0) return -1;
			} else if (c != string.charCodeAt(j++)) return -1;
		}
		return j;
	}
	function parsePeriod(d, string, i) {
		var n = periodRe.exec(string.slice(i));
		return n ? (d.p = periodLookup.get(n[0].toLowerCase()), i + n[0].length) : -1;
	}
	function parseShortWeekday(d, string, i) {
		var n = shortWeekdayRe.exec(string.slice(i));
		return n ? (d.w = shortWeekdayLookup.get(n[0].toLowerCase()), i + n[0].length) : -1;
	}
	function parseWeekday(d, string, i) {
		var n = weekdayRe.exec(string.slice(i));
		return n ? (d.w = weekdayLookup.get(n[0].toLowerCase()), i + n[0].length) : -1;
	}
	function parseShortMonth(d, string, i) {
		var n = shortMonthRe.exec(string.slice(i));
		return n ? (d.m = shortMonthLookup.get(n[0].toLowerCase()), i + n[0].length) : -1;
	}
	function parseMonth(d, string, i) {
		var n = monthRe.exec(string.slice(i));
		return n ? (d.m = monthLookup.get(n[0].toLowerCase()), i + n[0].length) : -1;
	}
	function parseLocaleDateTime(d, string, i) {
		return parseSpecifier(d, locale_dateTime, string, i);
	}
	function parseLocaleDate(d, string, i) {
		return parseSpecifier(d, locale_date, string, i);
	}
	function parseLocaleTime(d, string, i) {
		return parseSpecifier(d, locale_time, string, i);
	}
	function formatShortWeekday(d) {
		return locale_shortWeekdays[d.getDay()];
	}
	function formatWeekday(d) {
		return locale_weekdays[d.getDay()];
	}
	function formatShortMonth(d) {
		return locale_shortMonths[d.getMonth()];
	}
	function formatMonth(d) {
		return locale_months[d.getMonth()];
	}
	function formatPeriod(d) {
		return locale_periods[+(d.getHours() >= 12)];
	}
	function formatQuarter(d) {
		return 1 + ~~(d.getMonth() / 3);
	}
	function formatUTCShortWeekday(d) {
		return locale_shortWeekdays[d.getUTCDay()];
	}
	function formatUTCWeekday(d) {
		return locale_weekdays[d.getUTCDay()];
	}
	function formatUTCShortMonth(d) {
		return locale_shortMonths[d.getUTCMonth()];
	}
	function formatUTCMonth(d) {
		return locale_months[d.getUTCMonth()];
	}
	function formatUTCPeriod(d) {
		return locale_periods[+(d.getUTCHours() >= 12)];
	}
	function formatUTCQuarter(d) {
		return 1 + ~~(d.getUTCMonth() / 3);
	}
	return {
		format: function(specifier) {
			var f = newFormat(specifier += "", formats);
			f.toString = function() {
				return specifier;
			};
			return f;
		},
		parse: function(specifier) {
			var p = newParse(specifier += "", false);
			p.toString = function() {
				return specifier;
			};
			return p;
		},
		utcFormat: function(specifier) {
			var f = newFormat(specifier += "", utcFormats);
			f.toString = function() {
				return specifier;
			};
			return f;
		},
		utcParse: function(specifier) {
			var p = newParse(specifier += "", true);
			p.toString = function() {
				return specifier;
			};
			return p;
		}
	};
}
var pads = {
	"-": "",
	"_": " ",
	"0": "0"
};
var numberRe = /^\s*\d+/;
var percentRe = /^%/;
var requoteRe = /[\\^$*+?|[\]().{}]/g;
function pad$1(value, fill, width) {
	var sign = value < 0 ? "-" : "", string = (sign ? -value : value) + "", length = string.length;
	return sign + (length < width ? new Array(width - length + 1).join(fill) + string : string);
}
function requote(s) {
	return s.replace(requoteRe, "\\$&");
}
function formatRe(names) {
	return new RegExp("^(?:" + names.map(requote).join("|") + ")", "i");
}
function formatLookup(names) {
	return new Map(names.map((name, i) => [name.toLowerCase(), i]));
}
function parseWeekdayNumberSunday(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 1));
	return n ? (d.w = +n[0], i + n[0].length) : -1;
}
function parseWeekdayNumberMonday(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 1));
	return n ? (d.u = +n[0], i + n[0].length) : -1;
}
function parseWeekNumberSunday(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.U = +n[0], i + n[0].length) : -1;
}
function parseWeekNumberISO(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.V = +n[0], i + n[0].length) : -1;
}
function parseWeekNumberMonday(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.W = +n[0], i + n[0].length) : -1;
}
function parseFullYear(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 4));
	return n ? (d.y = +n[0], i + n[0].length) : -1;
}
function parseYear(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.y = +n[0] + (+n[0] > 68 ? 1900 : 2e3), i + n[0].length) : -1;
}
function parseZone(d, string, i) {
	var n = /^(Z)|([+-]\d\d)(?::?(\d\d))?/.exec(string.slice(i, i + 6));
	return n ? (d.Z = n[1] ? 0 : -(n[2] + (n[3] || "00")), i + n[0].length) : -1;
}
function parseQuarter(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 1));
	return n ? (d.q = n[0] * 3 - 3, i + n[0].length) : -1;
}
function parseMonthNumber(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.m = n[0] - 1, i + n[0].length) : -1;
}
function parseDayOfMonth(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.d = +n[0], i + n[0].length) : -1;
}
function parseDayOfYear(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 3));
	return n ? (d.m = 0, d.d = +n[0], i + n[0].length) : -1;
}
function parseHour24(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.H = +n[0], i + n[0].length) : -1;
}
function parseMinutes(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.M = +n[0], i + n[0].length) : -1;
}
function parseSeconds(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 2));
	return n ? (d.S = +n[0], i + n[0].length) : -1;
}
function parseMilliseconds(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 3));
	return n ? (d.L = +n[0], i + n[0].length) : -1;
}
function parseMicroseconds(d, string, i) {
	var n = numberRe.exec(string.slice(i, i + 6));
	return n ? (d.L = Math.floor(n[0] / 1e3), i + n[0].length) : -1;
}
function parseLiteralPercent(d, string, i) {
	var n = percentRe.exec(string.slice(i, i + 1));
	return n ? i + n[0].length : -1;
}
function parseUnixTimestamp(d, string, i) {
	var n = numberRe.exec(string.slice(i));
	return n ? (d.Q = +n[0], i + n[0].length) : -1;
}
function parseUnixTimestampSeconds(d, string, i) {
	var n = numberRe.exec(string.slice(i));
	return n ? (d.s = +n[0], i + n[0].length) : -1;
}
function formatDayOfMonth(d, p) {
	return pad$1(d.getDate(), p, 2);
}
function formatHour24(d, p) {
	return pad$1(d.getHours(), p, 2);
}
function formatHour12(d, p) {
	return pad$1(d.getHours() % 12 || 12, p, 2);
}
function formatDayOfYear(d, p) {
	return pad$1(1 + timeDay.count(timeYear(d), d), p, 3);
}
function formatMilliseconds(d, p) {
	return pad$1(d.getMilliseconds(), p, 3);
}
function formatMicroseconds(d, p) {
	return formatMilliseconds(d, p) + "000";
}
function formatMonthNumber(d, p) {
	return pad$1(d.getMonth() + 1, p, 2);
}
function formatMinutes(d, p) {
	return pad$1(d.getMinutes(), p, 2);
}
function formatSeconds(d, p) {
	return pad$1(d.getSeconds(), p, 2);
}
function formatWeekdayNumberMonday(d) {
	var day = d.getDay();
	return day === 0 ? 7 : day;
}
function formatWeekNumberSunday(d, p) {
	return pad$1(timeSunday.count(timeYear(d) - 1, d), p, 2);
}
function dISO(d) {
	var day = d.getDay();
	return day >= 4 || day === 0 ? timeThursday(d) : timeThursday.ceil(d);
}
function formatWeekNumberISO(d, p) {
	d = dISO(d);
	return pad$1(timeThursday.count(timeYear(d), d) + (timeYear(d).getDay() === 4), p, 2);
}
function formatWeekdayNumberSunday(d) {
	return d.getDay();
}
function formatWeekNumberMonday(d, p) {
	return pad$1(timeMonday.count(timeYear(d) - 1, d), p, 2);
}
function formatYear$1(d, p) {
	return pad$1(d.getFullYear() % 100, p, 2);
}
function formatYearISO(d, p) {
	d = dISO(d);
	return pad$1(d.getFullYear() % 100, p, 2);
}
function formatFullYear(d, p) {
	return pad$1(d.getFullYear() % 1e4, p, 4);
}
function formatFullYearISO(d, p) {
	var day = d.getDay();
	d = day >= 4 || day === 0 ? timeThursday(d) : timeThursday.ceil(d);
	return pad$1(d.getFullYear() % 1e4, p, 4);
}
function formatZone(d) {
	var z = d.getTimezoneOffset();
	return (z > 0 ? "-" : (z *= -1, "+")) + pad$1(z / 60 | 0, "0", 2) + pad$1(z % 60, "0", 2);
}
function formatUTCDayOfMonth(d, p) {
	return pad$1(d.getUTCDate(), p, 2);
}
function formatUTCHour24(d, p) {
	return pad$1(d.getUTCHours(), p, 2);
}
function formatUTCHour12(d, p) {
	return pad$1(d.getUTCHours() % 12 || 12, p, 2);
}
function formatUTCDayOfYear(d, p) {
	return pad$1(1 + utcDay.count(utcYear(d), d), p, 3);
}
function formatUTCMilliseconds(d, p) {
	return pad$1(d.getUTCMilliseconds(), p, 3);
}
function formatUTCMicroseconds(d, p) {
	return formatUTCMilliseconds(d, p) + "000";
}
function formatUTCMonthNumber(d, p) {
	return pad$1(d.getUTCMonth() + 1, p, 2);
}
function formatUTCMinutes(d, p) {
	return pad$1(d.getUTCMinutes(), p, 2);
}
function formatUTCSeconds(d, p) {
	return pad$1(d.getUTCSeconds(), p, 2);
}
function formatUTCWeekdayNumberMonday(d) {
	var dow = d.getUTCDay();
	return dow === 0 ? 7 : dow;
}
function formatUTCWeekNumberSunday(d, p) {
	return pad$1(utcSunday.count(utcYear(d) - 1, d), p, 2);
}
function UTCdISO(d) {
	var day = d.getUTCDay();
	return day >= 4 || day === 0 ? utcThursday(d) : utcThursday.ceil(d);
}
function formatUTCWeekNumberISO(d, p) {
	d = UTCdISO(d);
	return pad$1(utcThursday.count(utcYear(d), d) + (utcYear(d).getUTCDay() === 4), p, 2);
}
function formatUTCWeekdayNumberSunday(d) {
	return d.getUTCDay();
}
function formatUTCWeekNumberMonday(d, p) {
	return pad$1(utcMonday.count(utcYear(d) - 1, d), p, 2);
}
function formatUTCYear(d, p) {
	return pad$1(d.getUTCFullYear() % 100, p, 2);
}
function formatUTCYearISO(d, p) {
	d = UTCdISO(d);
	return pad$1(d.getUTCFullYear() % 100, p, 2);
}
function formatUTCFullYear(d, p) {
	return pad$1(d.getUTCFullYear() % 1e4, p, 4);
}
function formatUTCFullYearISO(d, p) {
	var day = d.getUTCDay();
	d = day >= 4 || day === 0 ? utcThursday(d) : utcThursday.ceil(d);
	return pad$1(d.getUTCFullYear() % 1e4, p, 4);
}
function formatUTCZone() {
	return "+0000";
}
function formatLiteralPercent() {
	return "%";
}
function formatUnixTimestamp(d) {
	return +d;
}
function formatUnixTimestampSeconds(d) {
	return Math.floor(+d / 1e3);
}
var locale;
var timeFormat;
var utcFormat;
var utcParse;
defaultLocale({
	dateTime: "%x, %X",
	date: "%-m/%-d/%Y",
	time: "%-I:%M:%S %p",
	periods: ["AM", "PM"],
	days: [
		"Sunday",
		"Monday",
		"Tuesday",
		"Wednesday",
		"Thursday",
		"Friday",
		"Saturday"
	],
	shortDays: [
		"Sun",
		"Mon",
		"Tue",
		"Wed",
		"Thu",
		"Fri",
		"Sat"
	],
	months: [
		"January",
		"February",
		"March",
		"April",
		"May",
		"June",
		"July",
		"August",
		"September",
		"October",
		"November",
		"December"
	],
	shortMonths: [
		"Jan",
		"Feb",
		"Mar",
		"Apr",
		"May",
		"Jun",
		"Jul",
		"Aug",
		"Sep",
		"Oct",
		"Nov",
		"Dec"
	]
});
function defaultLocale(definition) {
	locale = formatLocale(definition);
	timeFormat = locale.format;
	locale.parse;
	utcFormat = locale.utcFormat;
	utcParse = locale.utcParse;
	return locale;
}
var isoSpecifier = "%Y-%m-%dT%H:%M:%S.%LZ";
Date.prototype.toISOString || utcFormat(isoSpecifier);
+/* @__PURE__ */ new Date("2000-01-01T00:00:00.000Z") || utcParse(isoSpecifier);
// node_modules/d3-scale/dist/d3-scale.mjs
function initRange(domain, range) {
	switch (arguments.length) {
		case 0: break;
		case 1:
			this.range(domain);
			break;
		default: this.range(range).domain(domain);
	}
	return this;
}
function initInterpolator(domain, interpolator) {
	switch (arguments.length) {
		case 0: break;
		case 1:
			if (typeof domain === "function") this.interpolator(domain);
			else this.range(domain);
			break;
		default:
			this.domain(domain);
			if (typeof interpolator === "function") this.interpolator(interpolator);
			else this.range(interpolator);
	}
	return this;
}
var implicit = Symbol("implicit");
function ordinal() {
	var index = new InternMap(), domain = [], range = [], unknown = implicit;
	function scale(d) {
		let i = index.get(d);
		if (i === void 0) {
			if (unknown !== implicit) return unknown;
			index.set(d, i = domain.push(d) - 1);
		}
		return range[i % range.length];
	}
	scale.domain = function(_) {
		if (!arguments.length) return domain.slice();
		domain = [], index = new InternMap();
		for (const value of _) {
			if (index.has(value)) continue;
			index.set(value, domain.push(value) - 1);
		}
		return scale;
	};
	scale.range = function(_) {
		return arguments.length ? (range = Array.from(_), scale) : range.slice();
	};
	scale.unknown = function(_) {
		return arguments.length ? (unknown = _, scale) : unknown;
	};
	scale.copy = function() {
		return ordinal(domain, range).unknown(unknown);
	};
	initRange.apply(scale, arguments);
	return scale;
}
function band() {
	var scale = ordinal().unknown(void 0), domain = scale.domain, ordinalRange = scale.range, r0 = 0, r1 = 1, step, bandwidth, round = false, paddingInner = 0, paddingOuter = 0, align = .5;
	delete scale.unknown;
	function rescale() {
		var n = domain().length, reverse = r1 < r0, start = reverse ? r1 : r0, stop = reverse ? r0 : r1;
		step = (stop - start) / Math.max(1, n - paddingInner + paddingOuter * 2);
		if (round) step = Math.floor(step);
		start += (stop - start - step * (n - paddingInner)) * align;
		bandwidth = step * (1 - paddingInner);
		if (round) start = Math.round(start), bandwidth = Math.round(bandwidth);
		var values = range$1(n).map(function(i) {
			return start + step * i;
		});
		return ordinalRange(reverse ? values.reverse() : values);
	}
	scale.domain = function(_) {
		return arguments.length ? (domain(_), rescale()) : domain();
	};
	scale.range = function(_) {
		return arguments.length ? ([r0, r1] = _, r0 = +r0, r1 = +r1, rescale()) : [r0, r1];
	};
	scale.rangeRound = function(_) {
		return [r0, r1] = _, r0 = +r0, r1 = +r1, round = true, rescale();
	};
	scale.bandwidth = function() {
		return bandwidth;
	};
	scale.step = function() {
		return step;
	};
	scale.round = function(_) {
		return arguments.length ? (round = !!_, rescale()) : round;
	};
	scale.padding = function(_) {
		return arguments.length ? (paddingInner = Math.min(1, paddingOuter = +_), rescale()) : paddingInner;
	};
	scale.paddingInner = function(_) {
		return arguments.length ? (paddingInner = Math.min(1, _), rescale()) : paddingInner;
	};
	scale.paddingOuter = function(_) {
		return arguments.length ? (paddingOuter = +_, rescale()) : paddingOuter;
	};
	scale.align = function(_) {
		return arguments.length ? (align = Math.max(0, Math.min(1, _)), rescale()) : align;
	};
	scale.copy = function() {
		return band(domain(), [r0, r1]).round(round).paddingInner(paddingInner).paddingOuter(paddingOuter).align(align);
	};
	return initRange.apply(rescale(), arguments);
}
function pointish(scale) {
	var copy = scale.copy;
	scale.padding = scale.paddingOuter;
	delete scale.paddingInner;
	delete scale.paddingOuter;
	scale.copy = function() {
		return pointish(copy());
	};
	return scale;
}
function point$4() {
	return pointish(band.apply(null, arguments).paddingInner(1));
}
function constants(x) {
	return function() {
		return x;
	};
}
function number$1$1(x) {
	return +x;
}
var unit$1 = [0, 1];
function identity$1$1(x) {
	return x;
}
function normalize(a, b) {
	return (b -= a = +a) ? function(x) {
		return (x - a) / b;
	} : constants(isNaN(b) ? NaN : .5);
}
function clamper(a, b) {
	var t;
	if (a > b) t = a, a = b, b = t;
	return function(x) {
		return Math.max(a, Math.min(b, x));
	};
}
function bimap(domain, range, interpolate) {
	var d0 = domain[0], d1 = domain[1], r0 = range[0], r1 = range[1];
	if (d1 < d0) d0 = normalize(d1, d0), r0 = interpolate(r1, r0);
	else d0 = normalize(d0, d1), r0 = interpolate(r0, r1);
	return function(x) {
		return r0(d0(x));
	};
}
function polymap(domain, range, interpolate) {
	var j = Math.min(domain.length, range.length) - 1, d = new Array(j), r = new Array(j), i = -1;
	if (domain[j] < domain[0]) {
		domain = domain.slice().reverse();
		range = range.slice().reverse();
	}
	while (++i < j) {
		d[i] = normalize(domain[i], domain[i + 1]);
		r[i] = interpolate(range[i], range[i + 1]);
	}
	return function(x) {
		var i = bisectRight(domain, x, 1, j) - 1;
		return r[i](d[i](x));
	};
}
function copy$1(source, target) {
	return target.domain(source.domain()).range(source.range()).interpolate(source.interpolate()).clamp(source.clamp()).unknown(source.unknown());
}
function transformer$2() {
	var domain = unit$1, range = unit$1, interpolate$1 = value, transform, untransform, unknown, clamp = identity$1$1, piecewise, output, input;
	function rescale() {
		var n = Math.min(domain.length, range.length);
		if (clamp !== identity$1$1) clamp = clamper(domain[0], domain[n - 1]);
		piecewise = n > 2 ? polymap : bimap;
		output = input = null;
		return scale;
	}
	function scale(x) {
		return x == null || isNaN(x = +x) ? unknown : (output || (output = piecewise(domain.map(transform), range, interpolate$1)))(transform(clamp(x)));
	}
	scale.invert = function(y) {
		return clamp(untransform((input || (input = piecewise(range, domain.map(transform), number$4)))(y)));
	};
	scale.domain = function(_) {
		return arguments.length ? (domain = Array.from(_, number$1$1), rescale()) : domain.slice();
	};
	scale.range = function(_) {
		return arguments.length ? (range = Array.from(_), rescale()) : range.slice();
	};
	scale.rangeRound = function(_) {
		return range = Array.from(_), interpolate$1 = round, rescale();
	};
	scale.clamp = function(_) {
		return arguments.length ? (clamp = _ ? true : identity$1$1, rescale()) : clamp !== identity$1$1;
	};
	scale.interpolate = function(_) {
		return arguments.length ? (interpolate$1 = _, rescale()) : interpolate$1;
	};
	scale.unknown = function(_) {
		return arguments.length ? (unknown = _, scale) : unknown;
	};
	return function(t, u) {
		transform = t, untransform = u;
		return rescale();
	};
}
function continuous() {
	return transformer$2()(identity$1$1, identity$1$1);
}
function tickFormat(start, stop, count, specifier) {
	var step = tickStep(start, stop, count), precision;
	specifier = formatSpecifier(specifier == null ? ",f" : specifier);
	switch (specifier.type) {
		case "s":
			var value = Math.max(Math.abs(start), Math.abs(stop));
			if (specifier.precision == null && !isNaN(precision = precisionPrefix(step, value))) specifier.precision = precision;
			return formatPrefix(specifier, value);
		case "":
		case "e":
		case "g":
		case "p":
		case "r":
			if (specifier.precision == null && !isNaN(precision = precisionRound(step, Math.max(Math.abs(start), Math.abs(stop))))) specifier.precision = precision - (specifier.type === "e");
			break;
		case "f":
		case "%": if (specifier.precision == null && !isNaN(precision = precisionFixed(step))) specifier.precision = precision - (specifier.type === "%") * 2;
	}
	return format$1(specifier);
}
function linearish(scale) {
	var domain = scale.domain;
	scale.ticks = function(count) {
		var d = domain();
		return ticks(d[0], d[d.length - 1], count == null ? 10 : count);
	};
	scale.tickFormat = function(count, specifier) {
		var d = domain();
		return tickFormat(d[0], d[d.length - 1], count == null ? 10 : count, specifier);
	};
	scale.nice = function(count) {
		if (count == null) count = 10;
		var d = domain();
		var i0 = 0;
		var i1 = d.length - 1;
		var start = d[i0];
		var stop = d[i1];
		var prestep;
		var step;
		var maxIter = 10;
		if (stop < start) {
			step = start, start = stop, stop = step;
			step = i0, i0 = i1, i1 = step;
		}
		while (maxIter-- > 0) {
			step = tickIncrement(start, stop, count);
			if (step === prestep) {
				d[i0] = start;
				d[i1] = stop;
				return domain(d);
			} else if (step > 0) {
				start = Math.floor(start / step) * step;
				stop = Math.ceil(stop / step) * step;
			} else if (step < 0) {
				start = Math.ceil(start * step) / step;
				stop = Math.floor(stop * step) / step;
			} else break;
			prestep = step;
		}
		return scale;
	};
	return scale;
}
function linear() {
	var scale = continuous();
	scale.copy = function() {
		return copy$1(scale, linear());
	};
	initRange.apply(scale, arguments);
	return linearish(scale);
}
function identity$2(domain) {
	var unknown;
	function scale(x) {
		return x == null || isNaN(x = +x) ? unknown : x;
	}
	scale.invert = scale;
	scale.domain = scale.range = function(_) {
		return arguments.length ? (domain = Array.from(_, number$1$1), scale) : domain.slice();
	};
	scale.unknown = function(_) {
		return arguments.length ? (unknown = _, scale) : unknown;
	};
	scale.copy = function() {
		return identity$2(domain).unknown(unknown);
	};
	domain = arguments.length ? Array.from(domain, number$1$1) : [0, 1];
	return linearish(scale);
}
function nice(domain, interval) {
	domain = domain.slice();
	var i0 = 0, i1 = domain.length - 1, x0 = domain[i0], x1 = domain[i1], t;
	if (x1 < x0) {
		t = i0, i0 = i1, i1 = t;
		t = x0, x0 = x1, x1 = t;
	}
	domain[i0] = interval.floor(x0);
	domain[i1] = interval.ceil(x1);
	return domain;
}
function transformLog$1(x) {
	return Math.log(x);
}
function transformExp(x) {
	return Math.exp(x);
}
function transformLogn(x) {
	return -Math.log(-x);
}
function transformExpn(x) {
	return -Math.exp(-x);
}
function pow10(x) {
	return isFinite(x) ? +("1e" + x) : x < 0 ? 0 : x;
}
function powp(base) {
	return base === 10 ? pow10 : base === Math.E ? Math.exp : (x) => Math.pow(base, x);
}
function logp(base) {
	return base === Math.E ? Math.log : base === 10 && Math.log10 || base === 2 && Math.log2 || (base = Math.log(base), (x) => Math.log(x) / base);
}
function reflect(f) {
	return (x, k) => -f(-x, k);
}
function loggish(transform) {
	const scale = transform(transformLog$1, transformExp);
	const domain = scale.domain;
	let base = 10;
	let logs;
	let pows;
	function rescale() {
		logs = logp(base), pows = powp(base);
		if (domain()[0] < 0) {
			logs = reflect(logs), pows = reflect(pows);
			transform(transformLogn, transformExpn);
		} else transform(transformLog$1, transformExp);
		return scale;
	}
	scale.base = function(_) {
		return arguments.length ? (base = +_, rescale()) : base;
	};
	scale.domain = function(_) {
		return arguments.length ? (domain(_), rescale()) : domain();
	};
	scale.ticks = (count) => {
		const d = domain();
		let u = d[0];
		let v = d[d.length - 1];
		const r = v < u;
		if (r) [u, v] = [v, u];
		let i = logs(u);
		let j = logs(v);
		let k;
		let t;
		const n = count == null ? 10 : +count;
		let z = [];
		if (!(base % 1) && j - i < n) {
			i = Math.floor(i), j = Math.ceil(j);
			if (u > 0) for (; i <= j; ++i) for (k = 1; k < base; ++k) {
				t = i < 0 ? k / pows(-i) : k * pows(i);
				if (t < u) continue;
				if (t > v) break;
				z.push(t);
			}
			else for (; i <= j; ++i) for (k = base - 1; k >= 1; --k) {
				t = i > 0 ? k / pows(-i) : k * pows(i);
				if (t < u) continue;
				if (t > v) break;
				z.push(t);
			}
			if (z.length * 2 < n) z = ticks(u, v, n);
		} else z = ticks(i, j, Math.min(j - i, n)).map(pows);
		return r ? z.reverse() : z;
	};
	scale.tickFormat = (count, specifier) => {
		if (count == null) count = 10;
		if (specifier == null) specifier = base === 10 ? "s" : ",";
		if (typeof specifier !== "function") {
			if (!(base % 1) && (specifier = formatSpecifier(specifier)).precision == null) specifier.trim = true;
			specifier = format$1(specifier);
		}
		if (count === Infinity) return specifier;
		const k = Math.max(1, base * count / scale.ticks().length);
		return (d) => {
			let i = d / pows(Math.round(logs(d)));
			if (i * base < base - .5) i *= base;
			return i <= k ? specifier(d) : "";
		};
	};
	scale.nice = () => {
		return domain(nice(domain(), {
			floor: (x) => pows(Math.floor(logs(x))),
			ceil: (x) => pows(Math.ceil(logs(x)))
		}));
	};
	return scale;
}
function log() {
	const scale = loggish(transformer$2()).domain([1, 10]);
	scale.copy = () => copy$1(scale, log()).base(scale.base());
	initRange.apply(scale, arguments);
	return scale;
}
function transformSymlog$1(c) {
	return function(x) {
		return Math.sign(x) * Math.log1p(Math.abs(x / c));
	};
}
function transformSymexp(c) {
	return function(x) {
		return Math.sign(x) * Math.expm1(Math.abs(x)) * c;
	};
}
function symlogish(transform) {
	var c = 1, scale = transform(transformSymlog$1(c), transformSymexp(c));
	scale.constant = function(_) {
		return arguments.length ? transform(transformSymlog$1(c = +_), transformSymexp(c)) : c;
	};
	return linearish(scale);
}
function symlog() {
	var scale = symlogish(transformer$2());
	scale.copy = function() {
		return copy$1(scale, symlog()).constant(scale.constant());
	};
	return initRange.apply(scale, arguments);
}
function transformPow$1(exponent) {
	return function(x) {
		return x < 0 ? -Math.pow(-x, exponent) : Math.pow(x, exponent);
	};
}
function transformSqrt$1(x) {
	return x < 0 ? -Math.sqrt(-x) : Math.sqrt(x);
}
function transformSquare(x) {
	return x < 0 ? -x * x : x * x;
}
function powish(transform) {
	var scale = transform(identity$1$1, identity$1$1), exponent = 1;
	function rescale() {
		return exponent === 1 ? transform(identity$1$1, identity$1$1) : exponent === .5 ? transform(transformSqrt$1, transformSquare) : transform(transformPow$1(exponent), transformPow$1(1 / exponent));
	}
	scale.exponent = function(_) {
		return arguments.length ? (exponent = +_, rescale()) : exponent;
	};
	return linearish(scale);
}
function pow() {
	var scale = powish(transformer$2());
	scale.copy = function() {
		return copy$1(scale, pow()).exponent(scale.exponent());
	};
	initRange.apply(scale, arguments);
	return scale;
}
function quantile() {
	var domain = [], range = [], thresholds = [], unknown;
	function rescale() {
		var i = 0, n = Math.max(1, range.length);
		thresholds = new Array(n - 1);
		while (++i < n) thresholds[i - 1] = quantileSorted(domain, i / n);
		return scale;
	}
	function scale(x) {
		return x == null || isNaN(x = +x) ? unknown : range[bisectRight(thresholds, x)];
	}
	scale.invertExtent = function(y) {
		var i = range.indexOf(y);
		return i < 0 ? [NaN, NaN] : [i > 0 ? thresholds[i - 1] : domain[0], i < thresholds.length ? thresholds[i] : domain[domain.length - 1]];
	};
	scale.domain = function(_) {
		if (!arguments.length) return domain.slice();
		domain = [];
		for (let d of _) if (d != null && !isNaN(d = +d)) domain.push(d);
		domain.sort(ascending$1);
		return rescale();
	};
	scale.range = function(_) {
		return arguments.length ? (range = Array.from(_), rescale()) : range.slice();
	};
	scale.unknown = function(_) {
		return arguments.length ? (unknown = _, scale) : unknown;
	};
	scale.quantiles = function() {
		return thresholds.slice();
	};
	scale.copy = function() {
		return quantile().domain(domain).range(range).unknown(unknown);
	};
	return initRange.apply(scale, arguments);
}
function threshold() {
	var domain = [.5], range = [0, 1], unknown, n = 1;
	function scale(x) {
		return x != null && x <= x ? range[bisectRight(domain, x, 0, n)] : unknown;
	}
	scale.domain = function(_) {
		return arguments.length ? (domain = Array.from(_), n = Math.min(domain.length, range.length - 1), scale) : domain.slice();
	};
	scale.range = function(_) {
		return arguments.length ? (range = Array.from(_), n = Math.min(domain.length, range.length - 1), scale) : range.slice();
	};
	scale.invertExtent = function(y) {
		var i = range.indexOf(y);
		return [domain[i - 1], domain[i]];
	};
	scale.unknown = function(_) {
		return arguments.length ? (unknown = _, scale) : unknown;
	};
	scale.copy = function() {
		return threshold().domain(domain).range(range).unknown(unknown);
	};
	return initRange.apply(scale, arguments);
}
function date(t) {
	return new Date(t);
}
function number$3(t) {
	return t instanceof Date ? +t : Math.round(t);
}
function calendar(ticks, tickInterval, year, month, week, day, hour, minute, second, format) {
	var scale = continuous(), invert = scale.invert, domain = scale.domain;
	var formatMillisecond = format(".%L"), formatSecond = format(":%S"), formatMinute = format("%I:%M"), formatHour = format("%I %p"), formatDay = format("%a %d"), formatWeek = format("%b %d"), formatMonth = format("%B"), formatYear = format("%Y");
	function tickFormat(date) {
		return (second(date) < date ? formatMillisecond : minute(date) < date ? formatSecond : hour(date) < date ? formatMinute : day(date) < date ? formatHour : month(date) < date ? week(date) < date ? formatDay : formatWeek : year(date) < date ? formatMonth : formatYear)(date);
	}
	scale.invert = function(y) {
		return new Date(Math.round(invert(y)));
	};
	scale.domain = function(_) {
		return arguments.length ? domain(Array.from(_, number$3)) : domain().map(date);
	};
	scale.ticks = function(interval) {
		var d = domain();
		return ticks(d[0], d[d.length - 1], interval == null ? 10 : interval);
	};
	scale.tickFormat = function(count, specifier) {
		return specifier == null ? tickFormat : format(specifier);
	};
	scale.nice = function(interval) {
		var d = domain();
		if (!interval || typeof interval.range !== "function") interval = tickInterval(d[0], d[d.length - 1], interval == null ? 10 : interval);
		return interval ? domain(nice(d, interval)) : scale;
	};
	scale.copy = function() {
		return copy$1(scale, calendar(ticks, tickInterval, year, month, week, day, hour, minute, second, format));
	};
	return scale;
}
function time() {
	return initRange.apply(calendar(timeTicks, timeTickInterval, timeYear, timeMonth, timeSunday, timeDay, timeHour, timeMinute, second$1, timeFormat).domain([new Date(2e3, 0, 1), new Date(2e3, 0, 2)]), arguments);
}
function utcTime() {
	return initRange.apply(calendar(utcTicks, utcTickInterval, utcYear, utcMonth, utcSunday, utcDay, utcHour, utcMinute, second$1, utcFormat).domain([Date.UTC(2e3, 0, 1), Date.UTC(2e3, 0, 2)]), arguments);
}
function copy(source, target) {
	return target.domain(source.domain()).interpolator(source.interpolator()).clamp(source.clamp()).unknown(source.unknown());
}
function transformer() {
	var x0 = 0, x1 = .5, x2 = 1, s = 1, t0, t1, t2, k10, k21, interpolator = identity$1$1, transform, clamp = false, unknown;
	function scale(x) {
		return x == null || isNaN(x = +x) ? unknown : (x = .5 + ((x = +transform(x)) - t1) * (s * x < s * t1 ? k10 : k21), interpolator(clamp ? Math.max(0, Math.min(1, x)) : x));
	}
	scale.domain = function(_) {
		return arguments.length ? ([x0, x1, x2] = _, t0 = transform(x0 = +x0), t1 = transform(x1 = +x1), t2 = transform(x2 = +x2), k10 = t0 === t1 ? 0 : .5 / (t1 - t0), k21 = t1 === t2 ? 0 : .5 / (t2 - t1), s = t1 < t0 ? -1 : 1, scale) : [
			x0,
			x1,
			x2
		];
	};
	scale.clamp = function(_) {
		return arguments.length ? (clamp = !!_, scale) : clamp;
	};
	scale.interpolator = function(_) {
		return arguments.length ? (interpolator = _, scale) : interpolator;
	};
	function range(interpolate) {
		return function(_) {
			var r0, r1, r2;
			return arguments.length ? ([r0, r1, r2] = _, interpolator = piecewise(interpolate, [
				r0,
				r1,
				r2
			]), scale) : [
				interpolator(0),
				interpolator(.5),
				interpolator(1)
			];
		};
	}
	scale.range = range(value);
	scale.rangeRound = range(round);
	scale.unknown = function(_) {
		return arguments.length ? (unknown = _, scale) : unknown;
	};
	return function(t) {
		transform = t, t0 = t(x0), t1 = t(x1), t2 = t(x2), k10 = t0 === t1 ? 0 : .5 / (t1 - t0), k21 = t1 === t2 ? 0 : .5 / (t2 - t1), s = t1 < t0 ? -1 : 1;
		return scale;
	};
}
function diverging() {
	var scale = linearish(transformer()(identity$1$1));
	scale.copy = function() {
		return copy(scale, diverging());
	};
	return initInterpolator.apply(scale, arguments);
}
function divergingLog() {
	var scale = loggish(transformer()).domain([
		.1,
		1,
		10
	]);
	scale.copy = function() {
		return copy(scale, divergingLog()).base(scale.base());
	};
	return initInterpolator.apply(scale, arguments);
}
function divergingSymlog() {
	var scale = symlogish(transformer());
	scale.copy = function() {
		return copy(scale, divergingSymlog()).constant(scale.constant());
	};
	return initInterpolator.apply(scale, arguments);
}
function divergingPow() {
	var scale = powish(transformer());
	scale.copy = function() {
		return copy(scale, divergingPow()).exponent(scale.exponent());
	};
	return initInterpolator.apply(scale, arguments);
}
// node_modules/d3-scale-chromatic/dist/d3-scale-chromatic.mjs
function colors(specifier) {
	var n = specifier.length / 6 | 0, colors = new Array(n), i = 0;
	while (i < n) colors[i] = "#" + specifier.slice(i * 6, ++i * 6);
	return colors;
}
var category10 = colors("1f77b4ff7f0e2ca02cd627289467bd8c564be377c27f7f7fbcbd2217becf");
var Accent = colors("7fc97fbeaed4fdc086ffff99386cb0f0027fbf5b17666666");
var Dark2 = colors("1b9e77d95f027570b3e7298a66a61ee6ab02a6761d666666");
var observable10 = colors("4269d0efb118ff725c6cc5b03ca951ff8ab7a463f297bbf59c6b4e9498a0");
var Paired = colors("a6cee31f78b4b2df8a33a02cfb9a99e31a1cfdbf6fff7f00cab2d66a3d9affff99b15928");
var Pastel1 = colors("fbb4aeb3cde3ccebc5decbe4fed9a6ffffcce5d8bdfddaecf2f2f2");
var Pastel2 = colors("b3e2cdfdcdaccbd5e8f4cae4e6f5c9fff2aef1e2cccccccc");
var Set1 = colors("e41a1c377eb84daf4a984ea3ff7f00ffff33a65628f781bf999999");
var Set2 = colors("66c2a5fc8d628da0cbe78ac3a6d854ffd92fe5c494b3b3b3");
var Set3 = colors("8dd3c7ffffb3bebadafb807280b1d3fdb462b3de69fccde5d9d9d9bc80bdccebc5ffed6f");
var Tableau10 = colors("4e79a7f28e2ce1575976b7b259a14fedc949af7aa1ff9da79c755fbab0ab");
var ramp$1 = (scheme) => rgbBasis(scheme[scheme.length - 1]);
var scheme$q = new Array(3).concat("d8b365f5f5f55ab4ac", "a6611adfc27d80cdc1018571", "a6611adfc27df5f5f580cdc1018571", "8c510ad8b365f6e8c3c7eae55ab4ac01665e", "8c510ad8b365f6e8c3f5f5f5c7eae55ab4ac01665e", "8c510abf812ddfc27df6e8c3c7eae580cdc135978f01665e", "8c510abf812ddfc27df6e8c3f5f5f5c7eae580cdc135978f01665e", "5430058c510abf812ddfc27df6e8c3c7eae580cdc135978f01665e003c30", "5430058c510abf812ddfc27df6e8c3f5f5f5c7eae580cdc135978f01665e003c30").map(colors);
var BrBG = ramp$1(scheme$q);
var scheme$p = new Array(3).concat("af8dc3f7f7f77fbf7b", "7b3294c2a5cfa6dba0008837", "7b3294c2a5cff7f7f7a6dba0008837", "762a83af8dc3e7d4e8d9f0d37fbf7b1b7837", "762a83af8dc3e7d4e8f7f7f7d9f0d37fbf7b1b7837", "762a839970abc2a5cfe7d4e8d9f0d3a6dba05aae611b7837", "762a839970abc2a5cfe7d4e8f7f7f7d9f0d3a6dba05aae611b7837", "40004b762a839970abc2a5cfe7d4e8d9f0d3a6dba05aae611b783700441b", "40004b762a839970abc2a5cfe7d4e8f7f7f7d9f0d3a6dba05aae611b783700441b").map(colors);
var PRGn = ramp$1(scheme$p);
var scheme$o = new Array(3).concat("e9a3c9f7f7f7a1d76a", "d01c8bf1b6dab8e1864dac26", "d01c8bf1b6daf7f7f7b8e1864dac26", "c51b7de9a3c9fde0efe6f5d0a1d76a4d9221", "c51b7de9a3c9fde0eff7f7f7e6f5d0a1d76a4d9221", "c51b7dde77aef1b6dafde0efe6f5d0b8e1867fbc414d9221", "c51b7dde77aef1b6dafde0eff7f7f7e6f5d0b8e1867fbc414d9221", "8e0152c51b7dde77aef1b6dafde0efe6f5d0b8e1867fbc414d9221276419", "8e0152c51b7dde77aef1b6dafde0eff7f7f7e6f5d0b8e1867fbc414d9221276419").map(colors);
var PiYG = ramp$1(scheme$o);
var scheme$n = new Array(3).concat("998ec3f7f7f7f1a340", "5e3c99b2abd2fdb863e66101", "5e3c99b2abd2f7f7f7fdb863e66101", "542788998ec3d8daebfee0b6f1a340b35806", "542788998ec3d8daebf7f7f7fee0b6f1a340b35806", "5427888073acb2abd2d8daebfee0b6fdb863e08214b35806", "5427888073acb2abd2d8daebf7f7f7fee0b6fdb863e08214b35806", "2d004b5427888073acb2abd2d8daebfee0b6fdb863e08214b358067f3b08", "2d004b5427888073acb2abd2d8daebf7f7f7fee0b6fdb863e08214b358067f3b08").map(colors);
var PuOr = ramp$1(scheme$n);
var scheme$m = new Array(3).concat("ef8a62f7f7f767a9cf", "ca0020f4a58292c5de0571b0", "ca0020f4a582f7f7f792c5de0571b0", "b2182bef8a62fddbc7d1e5f067a9cf2166ac", "b2182bef8a62fddbc7f7f7f7d1e5f067a9cf2166ac", "b2182bd6604df4a582fddbc7d1e5f092c5de4393c32166ac", "b2182bd6604df4a582fddbc7f7f7f7d1e5f092c5de4393c32166ac", "67001fb2182bd6604df4a582fddbc7d1e5f092c5de4393c32166ac053061", "67001fb2182bd6604df4a582fddbc7f7f7f7d1e5f092c5de4393c32166ac053061").map(colors);
var RdBu = ramp$1(scheme$m);
var scheme$l = new Array(3).concat("ef8a62ffffff999999", "ca0020f4a582bababa404040", "ca0020f4a582ffffffbababa404040", "b2182bef8a62fddbc7e0e0e09999994d4d4d", "b2182bef8a62fddbc7ffffffe0e0e09999994d4d4d", "b2182bd6604df4a582fddbc7e0e0e0bababa8787874d4d4d", "b2182bd6604df4a582fddbc7ffffffe0e0e0bababa8787874d4d4d", "67001fb2182bd6604df4a582fddbc7e0e0e0bababa8787874d4d4d1a1a1a", "67001fb2182bd6604df4a582fddbc7ffffffe0e0e0bababa8787874d4d4d1a1a1a").map(colors);
var RdGy = ramp$1(scheme$l);
var scheme$k = new Array(3).concat("fc8d59ffffbf91bfdb", "d7191cfdae61abd9e92c7bb6", "d7191cfdae61ffffbfabd9e92c7bb6", "d73027fc8d59fee090e0f3f891bfdb4575b4", "d73027fc8d59fee090ffffbfe0f3f891bfdb4575b4", "d73027f46d43fdae61fee090e0f3f8abd9e974add14575b4", "d73027f46d43fdae61fee090ffffbfe0f3f8abd9e974add14575b4", "a50026d73027f46d43fdae61fee090e0f3f8abd9e974add14575b4313695", "a50026d73027f46d43fdae61fee090ffffbfe0f3f8abd9e974add14575b4313695").map(colors);
var RdYlBu = ramp$1(scheme$k);
var scheme$j = new Array(3).concat("fc8d59ffffbf91cf60", "d7191cfdae61a6d96a1a9641", "d7191cfdae61ffffbfa6d96a1a9641", "d73027fc8d59fee08bd9ef8b91cf601a9850", "d73027fc8d59fee08bffffbfd9ef8b91cf601a9850", "d73027f46d43fdae61fee08bd9ef8ba6d96a66bd631a9850", "d73027f46d43fdae61fee08bffffbfd9ef8ba6d96a66bd631a9850", "a50026d73027f46d43fdae61fee08bd9ef8ba6d96a66bd631a9850006837", "a50026d73027f46d43fdae61fee08bffffbfd9ef8ba6d96a66bd631a9850006837").map(colors);
var RdYlGn = ramp$1(scheme$j);
var scheme$i = new Array(3).concat("fc8d59ffffbf99d594", "d7191cfdae61abdda42b83ba", "d7191cfdae61ffffbfabdda42b83ba", "d53e4ffc8d59fee08be6f59899d5943288bd", "d53e4ffc8d59fee08bffffbfe6f59899d5943288bd", "d53e4ff46d43fdae61fee08be6f598abdda466c2a53288bd", "d53e4ff46d43fdae61fee08bffffbfe6f598abdda466c2a53288bd", "9e0142d53e4ff46d43fdae61fee08be6f598abdda466c2a53288bd5e4fa2", "9e0142d53e4ff46d43fdae61fee08bffffbfe6f598abdda466c2a53288bd5e4fa2").map(colors);
var Spectral = ramp$1(scheme$i);
var scheme$h = new Array(3).concat("e5f5f999d8c92ca25f", "edf8fbb2e2e266c2a4238b45", "edf8fbb2e2e266c2a42ca25f006d2c", "edf8fbccece699d8c966c2a42ca25f006d2c", "edf8fbccece699d8c966c2a441ae76238b45005824", "f7fcfde5f5f9ccece699d8c966c2a441ae76238b45005824", "f7fcfde5f5f9ccece699d8c966c2a441ae76238b45006d2c00441b").map(colors);
var BuGn = ramp$1(scheme$h);
var scheme$g = new Array(3).concat("e0ecf49ebcda8856a7", "edf8fbb3cde38c96c688419d", "edf8fbb3cde38c96c68856a7810f7c", "edf8fbbfd3e69ebcda8c96c68856a7810f7c", "edf8fbbfd3e69ebcda8c96c68c6bb188419d6e016b", "f7fcfde0ecf4bfd3e69ebcda8c96c68c6bb188419d6e016b", "f7fcfde0ecf4bfd3e69ebcda8c96c68c6bb188419d810f7c4d004b").map(colors);
var BuPu = ramp$1(scheme$g);
var scheme$f = new Array(3).concat("e0f3dba8ddb543a2ca", "f0f9e8bae4bc7bccc42b8cbe", "f0f9e8bae4bc7bccc443a2ca0868ac", "f0f9e8ccebc5a8ddb57bccc443a2ca0868ac", "f0f9e8ccebc5a8ddb57bccc44eb3d32b8cbe08589e", "f7fcf0e0f3dbccebc5a8ddb57bccc44eb3d32b8cbe08589e", "f7fcf0e0f3dbccebc5a8ddb57bccc44eb3d32b8cbe0868ac084081").map(colors);
var GnBu = ramp$1(scheme$f);
var scheme$e = new Array(3).concat("fee8c8fdbb84e34a33", "fef0d9fdcc8afc8d59d7301f", "fef0d9fdcc8afc8d59e34a33b30000", "fef0d9fdd49efdbb84fc8d59e34a33b30000", "fef0d9fdd49efdbb84fc8d59ef6548d7301f990000", "fff7ecfee8c8fdd49efdbb84fc8d59ef6548d7301f990000", "fff7ecfee8c8fdd49efdbb84fc8d59ef6548d7301fb300007f0000").map(colors);
var OrRd = ramp$1(scheme$e);
var scheme$d = new Array(3).concat("ece2f0a6bddb1c9099", "f6eff7bdc9e167a9cf02818a", "f6eff7bdc9e167a9cf1c9099016c59", "f6eff7d0d1e6a6bddb67a9cf1c9099016c59", "f6eff7d0d1e6a6bddb67a9cf3690c002818a016450", "fff7fbece2f0d0d1e6a6bddb67a9cf3690c002818a016450", "fff7fbece2f0d0d1e6a6bddb67a9cf3690c002818a016c59014636").map(colors);
var PuBuGn = ramp$1(scheme$d);
var scheme$c = new Array(3).concat("ece7f2a6bddb2b8cbe", "f1eef6bdc9e174a9cf0570b0", "f1eef6bdc9e174a9cf2b8cbe045a8d", "f1eef6d0d1e6a6bddb74a9cf2b8cbe045a8d", "f1eef6d0d1e6a6bddb74a9cf3690c00570b0034e7b", "fff7fbece7f2d0d1e6a6bddb74a9cf3690c00570b0034e7b", "fff7fbece7f2d0d1e6a6bddb74a9cf3690c00570b0045a8d023858").map(colors);
var PuBu = ramp$1(scheme$c);
var scheme$b = new Array(3).concat("e7e1efc994c7dd1c77", "f1eef6d7b5d8df65b0ce1256", "f1eef6d7b5d8df65b0dd1c77980043", "f1eef6d4b9dac994c7df65b0dd1c77980043", "f1eef6d4b9dac994c7df65b0e7298ace125691003f", "f7f4f9e7e1efd4b9dac994c7df65b0e7298ace125691003f", "f7f4f9e7e1efd4b9dac994c7df65b0e7298ace125698004367001f").map(colors);
var PuRd = ramp$1(scheme$b);
var scheme$a = new Array(3).concat("fde0ddfa9fb5c51b8a", "feebe2fbb4b9f768a1ae017e", "feebe2fbb4b9f768a1c51b8a7a0177", "feebe2fcc5c0fa9fb5f768a1c51b8a7a0177", "feebe2fcc5c0fa9fb5f768a1dd3497ae017e7a0177", "fff7f3fde0ddfcc5c0fa9fb5f768a1dd3497ae017e7a0177", "fff7f3fde0ddfcc5c0fa9fb5f768a1dd3497ae017e7a017749006a").map(colors);
var RdPu = ramp$1(scheme$a);
var scheme$9 = new Array(3).concat("edf8b17fcdbb2c7fb8", "ffffcca1dab441b6c4225ea8", "ffffcca1dab441b6c42c7fb8253494", "ffffccc7e9b47fcdbb41b6c42c7fb8253494", "ffffccc7e9b47fcdbb41b6c41d91c0225ea80c2c84", "ffffd9edf8b1c7e9b47fcdbb41b6c41d91c0225ea80c2c84", "ffffd9edf8b1c7e9b47fcdbb41b6c41d91c0225ea8253494081d58").map(colors);
var YlGnBu = ramp$1(scheme$9);
var scheme$8 = new Array(3).concat("f7fcb9addd8e31a354", "ffffccc2e69978c679238443", "ffffccc2e69978c67931a354006837", "ffffccd9f0a3addd8e78c67931a354006837", "ffffccd9f0a3addd8e78c67941ab5d238443005a32", "ffffe5f7fcb9d9f0a3addd8e78c67941ab5d238443005a32", "ffffe5f7fcb9d9f0a3addd8e78c67941ab5d238443006837004529").map(colors);
var YlGn = ramp$1(scheme$8);
var scheme$7 = new Array(3).concat("fff7bcfec44fd95f0e", "ffffd4fed98efe9929cc4c02", "ffffd4fed98efe9929d95f0e993404", "ffffd4fee391fec44ffe9929d95f0e993404", "ffffd4fee391fec44ffe9929ec7014cc4c028c2d04", "ffffe5fff7bcfee391fec44ffe9929ec7014cc4c028c2d04", "ffffe5fff7bcfee391fec44ffe9929ec7014cc4c02993404662506").map(colors);
var YlOrBr = ramp$1(scheme$7);
var scheme$6 = new Array(3).concat("ffeda0feb24cf03b20", "ffffb2fecc5cfd8d3ce31a1c", "ffffb2fecc5cfd8d3cf03b20bd0026", "ffffb2fed976feb24cfd8d3cf03b20bd0026", "ffffb2fed976feb24cfd8d3cfc4e2ae31a1cb10026", "ffffccffeda0fed976feb24cfd8d3cfc4e2ae31a1cb10026", "ffffccffeda0fed976feb24cfd8d3cfc4e2ae31a1cbd0026800026").map(colors);
var YlOrRd = ramp$1(scheme$6);
var scheme$5 = new Array(3).concat("deebf79ecae13182bd", "eff3ffbdd7e76baed62171b5", "eff3ffbdd7e76baed63182bd08519c", "eff3ffc6dbef9ecae16baed63182bd08519c", "eff3ffc6dbef9ecae16baed64292c62171b5084594", "f7fbffdeebf7c6dbef9ecae16baed64292c62171b5084594", "f7fbffdeebf7c6dbef9ecae16baed64292c62171b508519c08306b").map(colors);
var Blues = ramp$1(scheme$5);
var scheme$4 = new Array(3).concat("e5f5e0a1d99b31a354", "edf8e9bae4b374c476238b45", "edf8e9bae4b374c47631a354006d2c", "edf8e9c7e9c0a1d99b74c47631a354006d2c", "edf8e9c7e9c0a1d99b74c47641ab5d238b45005a32", "f7fcf5e5f5e0c7e9c0a1d99b74c47641ab5d238b45005a32", "f7fcf5e5f5e0c7e9c0a1d99b74c47641ab5d238b45006d2c00441b").map(colors);
var Greens = ramp$1(scheme$4);
var scheme$3 = new Array(3).concat("f0f0f0bdbdbd636363", "f7f7f7cccccc969696525252", "f7f7f7cccccc969696636363252525", "f7f7f7d9d9d9bdbdbd969696636363252525", "f7f7f7d9d9d9bdbdbd969696737373525252252525", "fffffff0f0f0d9d9d9bdbdbd969696737373525252252525", "fffffff0f0f0d9d9d9bdbdbd969696737373525252252525000000").map(colors);
var Greys = ramp$1(scheme$3);
var scheme$2 = new Array(3).concat("efedf5bcbddc756bb1", "f2f0f7cbc9e29e9ac86a51a3", "f2f0f7cbc9e29e9ac8756bb154278f", "f2f0f7dadaebbcbddc9e9ac8756bb154278f", "f2f0f7dadaebbcbddc9e9ac8807dba6a51a34a1486", "fcfbfdefedf5dadaebbcbddc9e9ac8807dba6a51a34a1486", "fcfbfdefedf5dadaebbcbddc9e9ac8807dba6a51a354278f3f007d").map(colors);
var Purples = ramp$1(scheme$2);
var scheme$1 = new Array(3).concat("fee0d2fc9272de2d26", "fee5d9fcae91fb6a4acb181d", "fee5d9fcae91fb6a4ade2d26a50f15", "fee5d9fcbba1fc9272fb6a4ade2d26a50f15", "fee5d9fcbba1fc9272fb6a4aef3b2ccb181d99000d", "fff5f0fee0d2fcbba1fc9272fb6a4aef3b2ccb181d99000d", "fff5f0fee0d2fcbba1fc9272fb6a4aef3b2ccb181da50f1567000d").map(colors);
var Reds = ramp$1(scheme$1);
var scheme = new Array(3).concat("fee6cefdae6be6550d", "feeddefdbe85fd8d3cd94701", "feeddefdbe85fd8d3ce6550da63603", "feeddefdd0a2fdae6bfd8d3ce6550da63603", "feeddefdd0a2fdae6bfd8d3cf16913d948018c2d04", "fff5ebfee6cefdd0a2fdae6bfd8d3cf16913d948018c2d04", "fff5ebfee6cefdd0a2fdae6bfd8d3cf16913d94801a636037f2704").map(colors);
var Oranges = ramp$1(scheme);
function cividis(t) {
	t = Math.max(0, Math.min(1, t));
	return "rgb(" + Math.max(0, Math.min(255, Math.round(-4.54 - t * (35.34 - t * (2381.73 - t * (6402.7 - t * (7024.72 - t * 2710.57))))))) + ", " + Math.max(0, Math.min(255, Math.round(32.49 + t * (170.73 + t * (52.82 - t * (131.46 - t * (176.58 - t * 67.37))))))) + ", " + Math.max(0, Math.min(255, Math.round(81.24 + t * (442.36 - t * (2482.43 - t * (6167.24 - t * (6614.94 - t * 2475.67))))))) + ")";
}
var cubehelix = cubehelixLong(cubehelix$1(300, .5, 0), cubehelix$1(-240, .5, 1));
var warm = cubehelixLong(cubehelix$1(-100, .75, .35), cubehelix$1(80, 1.5, .8));
var cool = cubehelixLong(cubehelix$1(260, .75, .35), cubehelix$1(80, 1.5, .8));
var c$1 = cubehelix$1();
function rainbow(t) {
	if (t < 0 || t > 1) t -= Math.floor(t);
	var ts = Math.abs(t - .5);
	c$1.h = 360 * t - 100;
	c$1.s = 1.5 - 1.5 * ts;
	c$1.l = .8 - .9 * ts;
	return c$1 + "";
}
var c$2 = rgb$1();
var pi_1_3 = Math.PI / 3;
var pi_2_3 = Math.PI * 2 / 3;
function sinebow(t) {
	var x;
	t = (.5 - t) * Math.PI;
	c$2.r = 255 * (x = Math.sin(t)) * x;
	c$2.g = 255 * (x = Math.sin(t + pi_1_3)) * x;
	c$2.b = 255 * (x = Math.sin(t + pi_2_3)) * x;
	return c$2 + "";
}
function turbo(t) {
	t = Math.max(0, Math.min(1, t));
	return "rgb(" + Math.max(0, Math.min(255, Math.round(34.61 + t * (1172.33 - t * (10793.56 - t * (33300.12 - t * (38394.49 - t * 14825.05))))))) + ", " + Math.max(0, Math.min(255, Math.round(23.31 + t * (557.33 + t * (1225.33 - t * (3574.96 - t * (1073.77 + t * 707.56))))))) + ", " + Math.max(0, Math.min(255, Math.round(27.2 + t * (3211.1 - t * (15327.97 - t * (27814 - t * (22569.18 - t * 6838.66))))))) + ")";
}
function ramp(range) {
	var n = range.length;
	return function(t) {
		return range[Math.max(0, Math.min(n - 1, Math.floor(t * n)))];
	};
}
var viridis = ramp(colors("44015444025645045745055946075a46085c460a5d460b5e470d60470e6147106347116447136548146748166848176948186a481a6c481b6d481c6e481d6f481f70482071482173482374482475482576482677482878482979472a7a472c7a472d7b472e7c472f7d46307e46327e46337f463480453581453781453882443983443a83443b84433d84433e85423f854240864241864142874144874045884046883f47883f48893e49893e4a893e4c8a3d4d8a3d4e8a3c4f8a3c508b3b518b3b528b3a538b3a548c39558c39568c38588c38598c375a8c375b8d365c8d365d8d355e8d355f8d34608d34618d33628d33638d32648e32658e31668e31678e31688e30698e306a8e2f6b8e2f6c8e2e6d8e2e6e8e2e6f8e2d708e2d718e2c718e2c728e2c738e2b748e2b758e2a768e2a778e2a788e29798e297a8e297b8e287c8e287d8e277e8e277f8e27808e26818e26828e26828e25838e25848e25858e24868e24878e23888e23898e238a8d228b8d228c8d228d8d218e8d218f8d21908d21918c20928c20928c20938c1f948c1f958b1f968b1f978b1f988b1f998a1f9a8a1e9b8a1e9c891e9d891f9e891f9f881fa0881fa1881fa1871fa28720a38620a48621a58521a68522a78522a88423a98324aa8325ab8225ac8226ad8127ad8128ae8029af7f2ab07f2cb17e2db27d2eb37c2fb47c31b57b32b67a34b67935b77937b87838b9773aba763bbb753dbc743fbc7340bd7242be7144bf7046c06f48c16e4ac16d4cc26c4ec36b50c46a52c56954c56856c66758c7655ac8645cc8635ec96260ca6063cb5f65cb5e67cc5c69cd5b6ccd5a6ece5870cf5773d05675d05477d1537ad1517cd2507fd34e81d34d84d44b86d54989d5488bd6468ed64590d74393d74195d84098d83e9bd93c9dd93ba0da39a2da37a5db36a8db34aadc32addc30b0dd2fb2dd2db5de2bb8de29bade28bddf26c0df25c2df23c5e021c8e020cae11fcde11dd0e11cd2e21bd5e21ad8e219dae319dde318dfe318e2e418e5e419e7e419eae51aece51befe51cf1e51df4e61ef6e620f8e621fbe723fde725"));
var magma = ramp(colors("00000401000501010601010802010902020b02020d03030f03031204041405041606051806051a07061c08071e0907200a08220b09240c09260d0a290e0b2b100b2d110c2f120d31130d34140e36150e38160f3b180f3d19103f1a10421c10441d11471e114920114b21114e22115024125325125527125829115a2a115c2c115f2d11612f116331116533106734106936106b38106c390f6e3b0f703d0f713f0f72400f74420f75440f764510774710784910784a10794c117a4e117b4f127b51127c52137c54137d56147d57157e59157e5a167e5c167f5d177f5f187f601880621980641a80651a80671b80681c816a1c816b1d816d1d816e1e81701f81721f817320817521817621817822817922827b23827c23827e24828025828125818326818426818627818827818928818b29818c29818e2a81902a81912b81932b80942c80962c80982d80992d809b2e7f9c2e7f9e2f7fa02f7fa1307ea3307ea5317ea6317da8327daa337dab337cad347cae347bb0357bb2357bb3367ab5367ab73779b83779ba3878bc3978bd3977bf3a77c03a76c23b75c43c75c53c74c73d73c83e73ca3e72cc3f71cd4071cf4070d0416fd2426fd3436ed5446dd6456cd8456cd9466bdb476adc4869de4968df4a68e04c67e24d66e34e65e44f64e55064e75263e85362e95462ea5661eb5760ec5860ed5a5fee5b5eef5d5ef05f5ef1605df2625df2645cf3655cf4675cf4695cf56b5cf66c5cf66e5cf7705cf7725cf8745cf8765cf9785df9795df97b5dfa7d5efa7f5efa815ffb835ffb8560fb8761fc8961fc8a62fc8c63fc8e64fc9065fd9266fd9467fd9668fd9869fd9a6afd9b6bfe9d6cfe9f6dfea16efea36ffea571fea772fea973feaa74feac76feae77feb078feb27afeb47bfeb67cfeb77efeb97ffebb81febd82febf84fec185fec287fec488fec68afec88cfeca8dfecc8ffecd90fecf92fed194fed395fed597fed799fed89afdda9cfddc9efddea0fde0a1fde2a3fde3a5fde5a7fde7a9fde9aafdebacfcecaefceeb0fcf0b2fcf2b4fcf4b6fcf6b8fcf7b9fcf9bbfcfbbdfcfdbf"));
var inferno = ramp(colors("00000401000501010601010802010a02020c02020e03021004031204031405041706041907051b08051d09061f0a07220b07240c08260d08290e092b10092d110a30120a32140b34150b37160b39180c3c190c3e1b0c411c0c431e0c451f0c48210c4a230c4c240c4f260c51280b53290b552b0b572d0b592f0a5b310a5c320a5e340a5f3609613809623909633b09643d09653e0966400a67420a68440a68450a69470b6a490b6a4a0c6b4c0c6b4d0d6c4f0d6c510e6c520e6d540f6d550f6d57106e59106e5a116e5c126e5d126e5f136e61136e62146e64156e65156e67166e69166e6a176e6c186e6d186e6f196e71196e721a6e741a6e751b6e771c6d781c6d7a1d6d7c1d6d7d1e6d7f1e6c801f6c82206c84206b85216b87216b88226a8a226a8c23698d23698f24699025689225689326679526679727669827669a28659b29649d29649f2a63a02a63a22b62a32c61a52c60a62d60a82e5fa92e5eab2f5ead305dae305cb0315bb1325ab3325ab43359b63458b73557b93556ba3655bc3754bd3853bf3952c03a51c13a50c33b4fc43c4ec63d4dc73e4cc83f4bca404acb4149cc4248ce4347cf4446d04545d24644d34743d44842d54a41d74b3fd84c3ed94d3dda4e3cdb503bdd513ade5238df5337e05536e15635e25734e35933e45a31e55c30e65d2fe75e2ee8602de9612bea632aeb6429eb6628ec6726ed6925ee6a24ef6c23ef6e21f06f20f1711ff1731df2741cf3761bf37819f47918f57b17f57d15f67e14f68013f78212f78410f8850ff8870ef8890cf98b0bf98c0af98e09fa9008fa9207fa9407fb9606fb9706fb9906fb9b06fb9d07fc9f07fca108fca309fca50afca60cfca80dfcaa0ffcac11fcae12fcb014fcb216fcb418fbb61afbb81dfbba1ffbbc21fbbe23fac026fac228fac42afac62df9c72ff9c932f9cb35f8cd37f8cf3af7d13df7d340f6d543f6d746f5d949f5db4cf4dd4ff4df53f4e156f3e35af3e55df2e661f2e865f2ea69f1ec6df1ed71f1ef75f1f179f2f27df2f482f3f586f3f68af4f88ef5f992f6fa96f8fb9af9fc9dfafda1fcffa4"));
var plasma = ramp(colors("0d088710078813078916078a19068c1b068d1d068e20068f2206902406912605912805922a05932c05942e05952f059631059733059735049837049938049a3a049a3c049b3e049c3f049c41049d43039e44039e46039f48039f4903a04b03a14c02a14e02a25002a25102a35302a35502a45601a45801a45901a55b01a55c01a65e01a66001a66100a76300a76400a76600a76700a86900a86a00a86c00a86e00a86f00a87100a87201a87401a87501a87701a87801a87a02a87b02a87d03a87e03a88004a88104a78305a78405a78606a68707a68808a68a09a58b0aa58d0ba58e0ca48f0da4910ea3920fa39410a29511a19613a19814a099159f9a169f9c179e9d189d9e199da01a9ca11b9ba21d9aa31e9aa51f99a62098a72197a82296aa2395ab2494ac2694ad2793ae2892b02991b12a90b22b8fb32c8eb42e8db52f8cb6308bb7318ab83289ba3388bb3488bc3587bd3786be3885bf3984c03a83c13b82c23c81c33d80c43e7fc5407ec6417dc7427cc8437bc9447aca457acb4679cc4778cc4977cd4a76ce4b75cf4c74d04d73d14e72d24f71d35171d45270d5536fd5546ed6556dd7566cd8576bd9586ada5a6ada5b69db5c68dc5d67dd5e66de5f65de6164df6263e06363e16462e26561e26660e3685fe4695ee56a5de56b5de66c5ce76e5be76f5ae87059e97158e97257ea7457eb7556eb7655ec7754ed7953ed7a52ee7b51ef7c51ef7e50f07f4ff0804ef1814df1834cf2844bf3854bf3874af48849f48948f58b47f58c46f68d45f68f44f79044f79143f79342f89441f89540f9973ff9983ef99a3efa9b3dfa9c3cfa9e3bfb9f3afba139fba238fca338fca537fca636fca835fca934fdab33fdac33fdae32fdaf31fdb130fdb22ffdb42ffdb52efeb72dfeb82cfeba2cfebb2bfebd2afebe2afec029fdc229fdc328fdc527fdc627fdc827fdca26fdcb26fccd25fcce25fcd025fcd225fbd324fbd524fbd724fad824fada24f9dc24f9dd25f8df25f8e125f7e225f7e425f6e626f6e826f5e926f5eb27f4ed27f3ee27f3f027f2f227f1f426f1f525f0f724f0f921"));
// node_modules/d3-shape/dist/d3-shape.mjs
function constant$1(x) {
	return function constant() {
		return x;
	};
}
var cos = Math.cos;
var min = Math.min;
var sin = Math.sin;
var sqrt = Math.sqrt;
var epsilon = 1e-12;
var pi$1 = Math.PI;
pi$1 / 2;
var tau$1 = 2 * pi$1;
function withPath(shape) {
	let digits = 3;
	shape.digits = function(_) {
		if (!arguments.length) return digits;
		if (_ == null) digits = null;
		else {
			const d = Math.floor(_);
			if (!(d >= 0)) throw new RangeError(`invalid digits: ${_}`);
			digits = d;
		}
		return shape;
	};
	return () => new Path(digits);
}
Array.prototype.slice;
function array(x) {
	return typeof x === "object" && "length" in x ? x : Array.from(x);
}
function Linear(context) {
	this._context = context;
}
Linear.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._point = 0;
	},
	lineEnd: function() {
		if (this._line || this._line !== 0 && this._point === 1) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				this._line ? this._context.lineTo(x, y) : this._context.moveTo(x, y);
				break;
			case 1: this._point = 2;
			default: this._context.lineTo(x, y);
		}
	}
};
function curveLinear(context) {
	return new Linear(context);
}
function x(p) {
	return p[0];
}
function y(p) {
	return p[1];
}
function line(x$1, y$1) {
	var defined = constant$1(true), context = null, curve = curveLinear, output = null, path = withPath(line);
	x$1 = typeof x$1 === "function" ? x$1 : x$1 === void 0 ? x : constant$1(x$1);
	y$1 = typeof y$1 === "function" ? y$1 : y$1 === void 0 ? y : constant$1(y$1);
	function line(data) {
		var i, n = (data = array(data)).length, d, defined0 = false, buffer;
		if (context == null) output = curve(buffer = path());
		for (i = 0; i <= n; ++i) {
			if (!(i < n && defined(d = data[i], i, data)) === defined0) {
				if (defined0 = !defined0) output.lineStart();
				else output.lineEnd();
			}
			if (defined0) output.point(+x$1(d, i, data), +y$1(d, i, data));
		}
		if (buffer) return output = null, buffer + "" || null;
	}
	line.x = function(_) {
		return arguments.length ? (x$1 = typeof _ === "function" ? _ : constant$1(+_), line) : x$1;
	};
	line.y = function(_) {
		return arguments.length ? (y$1 = typeof _ === "function" ? _ : constant$1(+_), line) : y$1;
	};
	line.defined = function(_) {
		return arguments.length ? (defined = typeof _ === "function" ? _ : constant$1(!!_), line) : defined;
	};
	line.curve = function(_) {
		return arguments.length ? (curve = _, context != null && (output = curve(context)), line) : curve;
	};
	line.context = function(_) {
		return arguments.length ? (_ == null ? context = output = null : output = curve(context = _), line) : context;
	};
	return line;
}
function area(x0, y0, y1) {
	var x1 = null, defined = constant$1(true), context = null, curve = curveLinear, output = null, path = withPath(area);
	x0 = typeof x0 === "function" ? x0 : x0 === void 0 ? x : constant$1(+x0);
	y0 = typeof y0 === "function" ? y0 : y0 === void 0 ? constant$1(0) : constant$1(+y0);
	y1 = typeof y1 === "function" ? y1 : y1 === void 0 ? y : constant$1(+y1);
	function area(data) {
		var i, j, k, n = (data = array(data)).length, d, defined0 = false, buffer, x0z = new Array(n), y0z = new Array(n);
		if (context == null) output = curve(buffer = path());
		for (i = 0; i <= n; ++i) {
			if (!(i < n && defined(d = data[i], i, data)) === defined0) {
				if (defined0 = !defined0) {
					j = i;
					output.areaStart();
					output.lineStart();
				} else {
					output.lineEnd();
					output.lineStart();
					for (k = i - 1; k >= j; --k) output.point(x0z[k], y0z[k]);
					output.lineEnd();
					output.areaEnd();
				}
			}
			if (defined0) {
				x0z[i] = +x0(d, i, data), y0z[i] = +y0(d, i, data);
				output.point(x1 ? +x1(d, i, data) : x0z[i], y1 ? +y1(d, i, data) : y0z[i]);
			}
		}
		if (buffer) return output = null, buffer + "" || null;
	}
	function arealine() {
		return line().defined(defined).curve(curve).context(context);
	}
	area.x = function(_) {
		return arguments.length ? (x0 = typeof _ === "function" ? _ : constant$1(+_), x1 = null, area) : x0;
	};
	area.x0 = function(_) {
		return arguments.length ? (x0 = typeof _ === "function" ? _ : constant$1(+_), area) : x0;
	};
	area.x1 = function(_) {
		return arguments.length ? (x1 = _ == null ? null : typeof _ === "function" ? _ : constant$1(+_), area) : x1;
	};
	area.y = function(_) {
		return arguments.length ? (y0 = typeof _ === "function" ? _ : constant$1(+_), y1 = null, area) : y0;
	};
	area.y0 = function(_) {
		return arguments.length ? (y0 = typeof _ === "function" ? _ : constant$1(+_), area) : y0;
	};
	area.y1 = function(_) {
		return arguments.length ? (y1 = _ == null ? null : typeof _ === "function" ? _ : constant$1(+_), area) : y1;
	};
	area.lineX0 = area.lineY0 = function() {
		return arealine().x(x0).y(y0);
	};
	area.lineY1 = function() {
		return arealine().x(x0).y(y1);
	};
	area.lineX1 = function() {
		return arealine().x(x1).y(y0);
	};
	area.defined = function(_) {
		return arguments.length ? (defined = typeof _ === "function" ? _ : constant$1(!!_), area) : defined;
	};
	area.curve = function(_) {
		return arguments.length ? (curve = _, context != null && (output = curve(context)), area) : curve;
	};
	area.context = function(_) {
		return arguments.length ? (_ == null ? context = output = null : output = curve(context = _), area) : context;
	};
	return area;
}
curveRadial(curveLinear);
function Radial(curve) {
	this._curve = curve;
}
Radial.prototype = {
	areaStart: function() {
		this._curve.areaStart();
	},
	areaEnd: function() {
		this._curve.areaEnd();
	},
	lineStart: function() {
		this._curve.lineStart();
	},
	lineEnd: function() {
		this._curve.lineEnd();
	},
	point: function(a, r) {
		this._curve.point(r * Math.sin(a), r * -Math.cos(a));
	}
};
function curveRadial(curve) {
	function radial(context) {
		return new Radial(curve(context));
	}
	radial._curve = curve;
	return radial;
}
var Bump = class {
	constructor(context, x) {
		this._context = context;
		this._x = x;
	}
	areaStart() {
		this._line = 0;
	}
	areaEnd() {
		this._line = NaN;
	}
	lineStart() {
		this._point = 0;
	}
	lineEnd() {
		if (this._line || this._line !== 0 && this._point === 1) this._context.closePath();
		this._line = 1 - this._line;
	}
	point(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				if (this._line) this._context.lineTo(x, y);
				else this._context.moveTo(x, y);
				break;
			case 1: this._point = 2;
			default: if (this._x) this._context.bezierCurveTo(this._x0 = (this._x0 + x) / 2, this._y0, this._x0, y, x, y);
			else this._context.bezierCurveTo(this._x0, this._y0 = (this._y0 + y) / 2, x, this._y0, x, y);
		}
		this._x0 = x, this._y0 = y;
	}
};
function bumpX(context) {
	return new Bump(context, true);
}
function bumpY(context) {
	return new Bump(context, false);
}
var sqrt3$2 = sqrt(3);
var asterisk = { draw(context, size) {
	const r = sqrt(size + min(size / 28, .75)) * .59436;
	const t = r / 2;
	const u = t * sqrt3$2;
	context.moveTo(0, r);
	context.lineTo(0, -r);
	context.moveTo(-u, -t);
	context.lineTo(u, t);
	context.moveTo(-u, t);
	context.lineTo(u, -t);
} };
var circle = { draw(context, size) {
	const r = sqrt(size / pi$1);
	context.moveTo(r, 0);
	context.arc(0, 0, r, 0, tau$1);
} };
var cross = { draw(context, size) {
	const r = sqrt(size / 5) / 2;
	context.moveTo(-3 * r, -r);
	context.lineTo(-r, -r);
	context.lineTo(-r, -3 * r);
	context.lineTo(r, -3 * r);
	context.lineTo(r, -r);
	context.lineTo(3 * r, -r);
	context.lineTo(3 * r, r);
	context.lineTo(r, r);
	context.lineTo(r, 3 * r);
	context.lineTo(-r, 3 * r);
	context.lineTo(-r, r);
	context.lineTo(-3 * r, r);
	context.closePath();
} };
var tan30 = sqrt(1 / 3);
var tan30_2 = tan30 * 2;
var diamond = { draw(context, size) {
	const y = sqrt(size / tan30_2);
	const x = y * tan30;
	context.moveTo(0, -y);
	context.lineTo(x, 0);
	context.lineTo(0, y);
	context.lineTo(-x, 0);
	context.closePath();
} };
var diamond2 = { draw(context, size) {
	const r = sqrt(size) * .62625;
	context.moveTo(0, -r);
	context.lineTo(r, 0);
	context.lineTo(0, r);
	context.lineTo(-r, 0);
	context.closePath();
} };
var plus = { draw(context, size) {
	const r = sqrt(size - min(size / 7, 2)) * .87559;
	context.moveTo(-r, 0);
	context.lineTo(r, 0);
	context.moveTo(0, r);
	context.lineTo(0, -r);
} };
var square = { draw(context, size) {
	const w = sqrt(size);
	const x = -w / 2;
	context.rect(x, x, w, w);
} };
var square2 = { draw(context, size) {
	const r = sqrt(size) * .4431;
	context.moveTo(r, r);
	context.lineTo(r, -r);
	context.lineTo(-r, -r);
	context.lineTo(-r, r);
	context.closePath();
} };
var ka = .8908130915292852;
var kr = sin(pi$1 / 10) / sin(7 * pi$1 / 10);
var kx = sin(tau$1 / 10) * kr;
var ky = -cos(tau$1 / 10) * kr;
var star = { draw(context, size) {
	const r = sqrt(size * ka);
	const x = kx * r;
	const y = ky * r;
	context.moveTo(0, -r);
	context.lineTo(x, y);
	for (let i = 1; i < 5; ++i) {
		const a = tau$1 * i / 5;
		const c = cos(a);
		const s = sin(a);
		context.lineTo(s * r, -c * r);
		context.lineTo(c * x - s * y, s * x + c * y);
	}
	context.closePath();
} };
var sqrt3$1 = sqrt(3);
var triangle = { draw(context, size) {
	const y = -sqrt(size / (sqrt3$1 * 3));
	context.moveTo(0, y * 2);
	context.lineTo(-sqrt3$1 * y, -y);
	context.lineTo(sqrt3$1 * y, -y);
	context.closePath();
} };
var sqrt3$3 = sqrt(3);
var triangle2 = { draw(context, size) {
	const s = sqrt(size) * .6824;
	const t = s / 2;
	const u = s * sqrt3$3 / 2;
	context.moveTo(0, -s);
	context.lineTo(u, t);
	context.lineTo(-u, t);
	context.closePath();
} };
var c = -.5;
var s = sqrt(3) / 2;
var k = 1 / sqrt(12);
var a = (k / 2 + 1) * 3;
var wye = { draw(context, size) {
	const r = sqrt(size / a);
	const x0 = r / 2, y0 = r * k;
	const x1 = x0, y1 = r * k + r;
	const x2 = -x1, y2 = y1;
	context.moveTo(x0, y0);
	context.lineTo(x1, y1);
	context.lineTo(x2, y2);
	context.lineTo(c * x0 - s * y0, s * x0 + c * y0);
	context.lineTo(c * x1 - s * y1, s * x1 + c * y1);
	context.lineTo(c * x2 - s * y2, s * x2 + c * y2);
	context.lineTo(c * x0 + s * y0, c * y0 - s * x0);
	context.lineTo(c * x1 + s * y1, c * y1 - s * x1);
	context.lineTo(c * x2 + s * y2, c * y2 - s * x2);
	context.closePath();
} };
var times = { draw(context, size) {
	const r = sqrt(size - min(size / 6, 1.7)) * .6189;
	context.moveTo(-r, -r);
	context.lineTo(r, r);
	context.moveTo(-r, r);
	context.lineTo(r, -r);
} };
var symbolsFill = [
	circle,
	cross,
	diamond,
	square,
	star,
	triangle,
	wye
];
var symbolsStroke = [
	circle,
	plus,
	times,
	triangle2,
	asterisk,
	square2,
	diamond2
];
function noop() {}
function point$3(that, x, y) {
	that._context.bezierCurveTo((2 * that._x0 + that._x1) / 3, (2 * that._y0 + that._y1) / 3, (that._x0 + 2 * that._x1) / 3, (that._y0 + 2 * that._y1) / 3, (that._x0 + 4 * that._x1 + x) / 6, (that._y0 + 4 * that._y1 + y) / 6);
}
function Basis(context) {
	this._context = context;
}
Basis.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x0 = this._x1 = this._y0 = this._y1 = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		switch (this._point) {
			case 3: point$3(this, this._x1, this._y1);
			case 2: this._context.lineTo(this._x1, this._y1);
		}
		if (this._line || this._line !== 0 && this._point === 1) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				this._line ? this._context.lineTo(x, y) : this._context.moveTo(x, y);
				break;
			case 1:
				this._point = 2;
				break;
			case 2:
				this._point = 3;
				this._context.lineTo((5 * this._x0 + this._x1) / 6, (5 * this._y0 + this._y1) / 6);
			default: point$3(this, x, y);
		}
		this._x0 = this._x1, this._x1 = x;
		this._y0 = this._y1, this._y1 = y;
	}
};
function basis(context) {
	return new Basis(context);
}
function BasisClosed(context) {
	this._context = context;
}
BasisClosed.prototype = {
	areaStart: noop,
	areaEnd: noop,
	lineStart: function() {
		this._x0 = this._x1 = this._x2 = this._x3 = this._x4 = this._y0 = this._y1 = this._y2 = this._y3 = this._y4 = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		switch (this._point) {
			case 1:
				this._context.moveTo(this._x2, this._y2);
				this._context.closePath();
				break;
			case 2:
				this._context.moveTo((this._x2 + 2 * this._x3) / 3, (this._y2 + 2 * this._y3) / 3);
				this._context.lineTo((this._x3 + 2 * this._x2) / 3, (this._y3 + 2 * this._y2) / 3);
				this._context.closePath();
				break;
			case 3:
				this.point(this._x2, this._y2);
				this.point(this._x3, this._y3);
				this.point(this._x4, this._y4);
		}
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				this._x2 = x, this._y2 = y;
				break;
			case 1:
				this._point = 2;
				this._x3 = x, this._y3 = y;
				break;
			case 2:
				this._point = 3;
				this._x4 = x, this._y4 = y;
				this._context.moveTo((this._x0 + 4 * this._x1 + x) / 6, (this._y0 + 4 * this._y1 + y) / 6);
				break;
			default: point$3(this, x, y);
		}
		this._x0 = this._x1, this._x1 = x;
		this._y0 = this._y1, this._y1 = y;
	}
};
function basisClosed(context) {
	return new BasisClosed(context);
}
function BasisOpen(context) {
	this._context = context;
}
BasisOpen.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x0 = this._x1 = this._y0 = this._y1 = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		if (this._line || this._line !== 0 && this._point === 3) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				break;
			case 1:
				this._point = 2;
				break;
			case 2:
				this._point = 3;
				var x0 = (this._x0 + 4 * this._x1 + x) / 6, y0 = (this._y0 + 4 * this._y1 + y) / 6;
				this._line ? this._context.lineTo(x0, y0) : this._context.moveTo(x0, y0);
				break;
			case 3: this._point = 4;
			default: point$3(this, x, y);
		}
		this._x0 = this._x1, this._x1 = x;
		this._y0 = this._y1, this._y1 = y;
	}
};
function basisOpen(context) {
	return new BasisOpen(context);
}
function Bundle(context, beta) {
	this._basis = new Basis(context);
	this._beta = beta;
}
Bundle.prototype = {
	lineStart: function() {
		this._x = [];
		this._y = [];
		this._basis.lineStart();
	},
	lineEnd: function() {
		var x = this._x, y = this._y, j = x.length - 1;
		if (j > 0) {
			var x0 = x[0], y0 = y[0], dx = x[j] - x0, dy = y[j] - y0, i = -1, t;
			while (++i <= j) {
				t = i / j;
				this._basis.point(this._beta * x[i] + (1 - this._beta) * (x0 + t * dx), this._beta * y[i] + (1 - this._beta) * (y0 + t * dy));
			}
		}
		this._x = this._y = null;
		this._basis.lineEnd();
	},
	point: function(x, y) {
		this._x.push(+x);
		this._y.push(+y);
	}
};
var bundle = (function custom(beta) {
	function bundle(context) {
		return beta === 1 ? new Basis(context) : new Bundle(context, beta);
	}
	bundle.beta = function(beta) {
		return custom(+beta);
	};
	return bundle;
})(.85);
function point$2(that, x, y) {
	that._context.bezierCurveTo(that._x1 + that._k * (that._x2 - that._x0), that._y1 + that._k * (that._y2 - that._y0), that._x2 + that._k * (that._x1 - x), that._y2 + that._k * (that._y1 - y), that._x2, that._y2);
}
function Cardinal(context, tension) {
	this._context = context;
	this._k = (1 - tension) / 6;
}
Cardinal.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x0 = this._x1 = this._x2 = this._y0 = this._y1 = this._y2 = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		switch (this._point) {
			case 2:
				this._context.lineTo(this._x2, this._y2);
				break;
			case 3: point$2(this, this._x1, this._y1);
		}
		if (this._line || this._line !== 0 && this._point === 1) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				this._line ? this._context.lineTo(x, y) : this._context.moveTo(x, y);
				break;
			case 1:
				this._point = 2;
				this._x1 = x, this._y1 = y;
				break;
			case 2: this._point = 3;
			default: point$2(this, x, y);
		}
		this._x0 = this._x1, this._x1 = this._x2, this._x2 = x;
		this._y0 = this._y1, this._y1 = this._y2, this._y2 = y;
	}
};
var cardinal = (function custom(tension) {
	function cardinal(context) {
		return new Cardinal(context, tension);
	}
	cardinal.tension = function(tension) {
		return custom(+tension);
	};
	return cardinal;
})(0);
function CardinalClosed(context, tension) {
	this._context = context;
	this._k = (1 - tension) / 6;
}
CardinalClosed.prototype = {
	areaStart: noop,
	areaEnd: noop,
	lineStart: function() {
		this._x0 = this._x1 = this._x2 = this._x3 = this._x4 = this._x5 = this._y0 = this._y1 = this._y2 = this._y3 = this._y4 = this._y5 = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		switch (this._point) {
			case 1:
				this._context.moveTo(this._x3, this._y3);
				this._context.closePath();
				break;
			case 2:
				this._context.lineTo(this._x3, this._y3);
				this._context.closePath();
				break;
			case 3:
				this.point(this._x3, this._y3);
				this.point(this._x4, this._y4);
				this.point(this._x5, this._y5);
		}
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				this._x3 = x, this._y3 = y;
				break;
			case 1:
				this._point = 2;
				this._context.moveTo(this._x4 = x, this._y4 = y);
				break;
			case 2:
				this._point = 3;
				this._x5 = x, this._y5 = y;
				break;
			default: point$2(this, x, y);
		}
		this._x0 = this._x1, this._x1 = this._x2, this._x2 = x;
		this._y0 = this._y1, this._y1 = this._y2, this._y2 = y;
	}
};
var cardinalClosed = (function custom(tension) {
	function cardinal(context) {
		return new CardinalClosed(context, tension);
	}
	cardinal.tension = function(tension) {
		return custom(+tension);
	};
	return cardinal;
})(0);
function CardinalOpen(context, tension) {
	this._context = context;
	this._k = (1 - tension) / 6;
}
CardinalOpen.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x0 = this._x1 = this._x2 = this._y0 = this._y1 = this._y2 = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		if (this._line || this._line !== 0 && this._point === 3) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				break;
			case 1:
				this._point = 2;
				break;
			case 2:
				this._point = 3;
				this._line ? this._context.lineTo(this._x2, this._y2) : this._context.moveTo(this._x2, this._y2);
				break;
			case 3: this._point = 4;
			default: point$2(this, x, y);
		}
		this._x0 = this._x1, this._x1 = this._x2, this._x2 = x;
		this._y0 = this._y1, this._y1 = this._y2, this._y2 = y;
	}
};
var cardinalOpen = (function custom(tension) {
	function cardinal(context) {
		return new CardinalOpen(context, tension);
	}
	cardinal.tension = function(tension) {
		return custom(+tension);
	};
	return cardinal;
})(0);
function point$1(that, x, y) {
	var x1 = that._x1, y1 = that._y1, x2 = that._x2, y2 = that._y2;
	if (that._l01_a > epsilon) {
		var a = 2 * that._l01_2a + 3 * that._l01_a * that._l12_a + that._l12_2a, n = 3 * that._l01_a * (that._l01_a + that._l12_a);
		x1 = (x1 * a - that._x0 * that._l12_2a + that._x2 * that._l01_2a) / n;
		y1 = (y1 * a - that._y0 * that._l12_2a + that._y2 * that._l01_2a) / n;
	}
	if (that._l23_a > epsilon) {
		var b = 2 * that._l23_2a + 3 * that._l23_a * that._l12_a + that._l12_2a, m = 3 * that._l23_a * (that._l23_a + that._l12_a);
		x2 = (x2 * b + that._x1 * that._l23_2a - x * that._l12_2a) / m;
		y2 = (y2 * b + that._y1 * that._l23_2a - y * that._l12_2a) / m;
	}
	that._context.bezierCurveTo(x1, y1, x2, y2, that._x2, that._y2);
}
function CatmullRom(context, alpha) {
	this._context = context;
	this._alpha = alpha;
}
CatmullRom.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x0 = this._x1 = this._x2 = this._y0 = this._y1 = this._y2 = NaN;
		this._l01_a = this._l12_a = this._l23_a = this._l01_2a = this._l12_2a = this._l23_2a = this._point = 0;
	},
	lineEnd: function() {
		switch (this._point) {
			case 2:
				this._context.lineTo(this._x2, this._y2);
				break;
			case 3: this.point(this._x2, this._y2);
		}
		if (this._line || this._line !== 0 && this._point === 1) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		if (this._point) {
			var x23 = this._x2 - x, y23 = this._y2 - y;
			this._l23_a = Math.sqrt(this._l23_2a = Math.pow(x23 * x23 + y23 * y23, this._alpha));
		}
		switch (this._point) {
			case 0:
				this._point = 1;
				this._line ? this._context.lineTo(x, y) : this._context.moveTo(x, y);
				break;
			case 1:
				this._point = 2;
				break;
			case 2: this._point = 3;
			default: point$1(this, x, y);
		}
		this._l01_a = this._l12_a, this._l12_a = this._l23_a;
		this._l01_2a = this._l12_2a, this._l12_2a = this._l23_2a;
		this._x0 = this._x1, this._x1 = this._x2, this._x2 = x;
		this._y0 = this._y1, this._y1 = this._y2, this._y2 = y;
	}
};
var catmullRom = (function custom(alpha) {
	function catmullRom(context) {
		return alpha ? new CatmullRom(context, alpha) : new Cardinal(context, 0);
	}
	catmullRom.alpha = function(alpha) {
		return custom(+alpha);
	};
	return catmullRom;
})(.5);
function CatmullRomClosed(context, alpha) {
	this._context = context;
	this._alpha = alpha;
}
CatmullRomClosed.prototype = {
	areaStart: noop,
	areaEnd: noop,
	lineStart: function() {
		this._x0 = this._x1 = this._x2 = this._x3 = this._x4 = this._x5 = this._y0 = this._y1 = this._y2 = this._y3 = this._y4 = this._y5 = NaN;
		this._l01_a = this._l12_a = this._l23_a = this._l01_2a = this._l12_2a = this._l23_2a = this._point = 0;
	},
	lineEnd: function() {
		switch (this._point) {
			case 1:
				this._context.moveTo(this._x3, this._y3);
				this._context.closePath();
				break;
			case 2:
				this._context.lineTo(this._x3, this._y3);
				this._context.closePath();
				break;
			case 3:
				this.point(this._x3, this._y3);
				this.point(this._x4, this._y4);
				this.point(this._x5, this._y5);
		}
	},
	point: function(x, y) {
		x = +x, y = +y;
		if (this._point) {
			var x23 = this._x2 - x, y23 = this._y2 - y;
			this._l23_a = Math.sqrt(this._l23_2a = Math.pow(x23 * x23 + y23 * y23, this._alpha));
		}
		switch (this._point) {
			case 0:
				this._point = 1;
				this._x3 = x, this._y3 = y;
				break;
			case 1:
				this._point = 2;
				this._context.moveTo(this._x4 = x, this._y4 = y);
				break;
			case 2:
				this._point = 3;
				this._x5 = x, this._y5 = y;
				break;
			default: point$1(this, x, y);
		}
		this._l01_a = this._l12_a, this._l12_a = this._l23_a;
		this._l01_2a = this._l12_2a, this._l12_2a = this._l23_2a;
		this._x0 = this._x1, this._x1 = this._x2, this._x2 = x;
		this._y0 = this._y1, this._y1 = this._y2, this._y2 = y;
	}
};
var catmullRomClosed = (function custom(alpha) {
	function catmullRom(context) {
		return alpha ? new CatmullRomClosed(context, alpha) : new CardinalClosed(context, 0);
	}
	catmullRom.alpha = function(alpha) {
		return custom(+alpha);
	};
	return catmullRom;
})(.5);
function CatmullRomOpen(context, alpha) {
	this._context = context;
	this._alpha = alpha;
}
CatmullRomOpen.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x0 = this._x1 = this._x2 = this._y0 = this._y1 = this._y2 = NaN;
		this._l01_a = this._l12_a = this._l23_a = this._l01_2a = this._l12_2a = this._l23_2a = this._point = 0;
	},
	lineEnd: function() {
		if (this._line || this._line !== 0 && this._point === 3) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		if (this._point) {
			var x23 = this._x2 - x, y23 = this._y2 - y;
			this._l23_a = Math.sqrt(this._l23_2a = Math.pow(x23 * x23 + y23 * y23, this._alpha));
		}
		switch (this._point) {
			case 0:
				this._point = 1;
				break;
			case 1:
				this._point = 2;
				break;
			case 2:
				this._point = 3;
				this._line ? this._context.lineTo(this._x2, this._y2) : this._context.moveTo(this._x2, this._y2);
				break;
			case 3: this._point = 4;
			default: point$1(this, x, y);
		}
		this._l01_a = this._l12_a, this._l12_a = this._l23_a;
		this._l01_2a = this._l12_2a, this._l12_2a = this._l23_2a;
		this._x0 = this._x1, this._x1 = this._x2, this._x2 = x;
		this._y0 = this._y1, this._y1 = this._y2, this._y2 = y;
	}
};
var catmullRomOpen = (function custom(alpha) {
	function catmullRom(context) {
		return alpha ? new CatmullRomOpen(context, alpha) : new CardinalOpen(context, 0);
	}
	catmullRom.alpha = function(alpha) {
		return custom(+alpha);
	};
	return catmullRom;
})(.5);
function LinearClosed(context) {
	this._context = context;
}
LinearClosed.prototype = {
	areaStart: noop,
	areaEnd: noop,
	lineStart: function() {
		this._point = 0;
	},
	lineEnd: function() {
		if (this._point) this._context.closePath();
	},
	point: function(x, y) {
		x = +x, y = +y;
		if (this._point) this._context.lineTo(x, y);
		else this._point = 1, this._context.moveTo(x, y);
	}
};
function linearClosed(context) {
	return new LinearClosed(context);
}
function sign(x) {
	return x < 0 ? -1 : 1;
}
function slope3(that, x2, y2) {
	var h0 = that._x1 - that._x0, h1 = x2 - that._x1, s0 = (that._y1 - that._y0) / (h0 || h1 < 0 && -0), s1 = (y2 - that._y1) / (h1 || h0 < 0 && -0), p = (s0 * h1 + s1 * h0) / (h0 + h1);
	return (sign(s0) + sign(s1)) * Math.min(Math.abs(s0), Math.abs(s1), .5 * Math.abs(p)) || 0;
}
function slope2(that, t) {
	var h = that._x1 - that._x0;
	return h ? (3 * (that._y1 - that._y0) / h - t) / 2 : t;
}
function point(that, t0, t1) {
	var x0 = that._x0, y0 = that._y0, x1 = that._x1, y1 = that._y1, dx = (x1 - x0) / 3;
	that._context.bezierCurveTo(x0 + dx, y0 + dx * t0, x1 - dx, y1 - dx * t1, x1, y1);
}
function MonotoneX(context) {
	this._context = context;
}
MonotoneX.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x0 = this._x1 = this._y0 = this._y1 = this._t0 = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		switch (this._point) {
			case 2:
				this._context.lineTo(this._x1, this._y1);
				break;
			case 3: point(this, this._t0, slope2(this, this._t0));
		}
		if (this._line || this._line !== 0 && this._point === 1) this._context.closePath();
		this._line = 1 - this._line;
	},
	point: function(x, y) {
		var t1 = NaN;
		x = +x, y = +y;
		if (x === this._x1 && y === this._y1) return;
		switch (this._point) {
			case 0:
				this._point = 1;
				this._line ? this._context.lineTo(x, y) : this._context.moveTo(x, y);
				break;
			case 1:
				this._point = 2;
				break;
			case 2:
				this._point = 3;
				point(this, slope2(this, t1 = slope3(this, x, y)), t1);
				break;
			default: point(this, this._t0, t1 = slope3(this, x, y));
		}
		this._x0 = this._x1, this._x1 = x;
		this._y0 = this._y1, this._y1 = y;
		this._t0 = t1;
	}
};
function MonotoneY(context) {
	this._context = new ReflectContext(context);
}
(MonotoneY.prototype = Object.create(MonotoneX.prototype)).point = function(x, y) {
	MonotoneX.prototype.point.call(this, y, x);
};
function ReflectContext(context) {
	this._context = context;
}
ReflectContext.prototype = {
	moveTo: function(x, y) {
		this._context.moveTo(y, x);
	},
	closePath: function() {
		this._context.closePath();
	},
	lineTo: function(x, y) {
		this._context.lineTo(y, x);
	},
	bezierCurveTo: function(x1, y1, x2, y2, x, y) {
		this._context.bezierCurveTo(y1, x1, y2, x2, y, x);
	}
};
function monotoneX(context) {
	return new MonotoneX(context);
}
function monotoneY(context) {
	return new MonotoneY(context);
}
function Natural(context) {
	this._context = context;
}
Natural.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x = [];
		this._y = [];
	},
	lineEnd: function() {
		var x = this._x, y = this._y, n = x.length;
		if (n) {
			this._line ? this._context.lineTo(x[0], y[0]) : this._context.moveTo(x[0], y[0]);
			if (n === 2) this._context.lineTo(x[1], y[1]);
			else {
				var px = controlPoints(x), py = controlPoints(y);
				for (var i0 = 0, i1 = 1; i1 < n; ++i0, ++i1) this._context.bezierCurveTo(px[0][i0], py[0][i0], px[1][i0], py[1][i0], x[i1], y[i1]);
			}
		}
		if (this._line || this._line !== 0 && n === 1) this._context.closePath();
		this._line = 1 - this._line;
		this._x = this._y = null;
	},
	point: function(x, y) {
		this._x.push(+x);
		this._y.push(+y);
	}
};
function controlPoints(x) {
	var i, n = x.length - 1, m, a = new Array(n), b = new Array(n), r = new Array(n);
	a[0] = 0, b[0] = 2, r[0] = x[0] + 2 * x[1];
	for (i = 1; i < n - 1; ++i) a[i] = 1, b[i] = 4, r[i] = 4 * x[i] + 2 * x[i + 1];
	a[n - 1] = 2, b[n - 1] = 7, r[n - 1] = 8 * x[n - 1] + x[n];
	for (i = 1; i < n; ++i) m = a[i] / b[i - 1], b[i] -= m, r[i] -= m * r[i - 1];
	a[n - 1] = r[n - 1] / b[n - 1];
	for (i = n - 2; i >= 0; --i) a[i] = (r[i] - a[i + 1]) / b[i];
	b[n - 1] = (x[n] + a[n - 1]) / 2;
	for (i = 0; i < n - 1; ++i) b[i] = 2 * x[i + 1] - a[i + 1];
	return [a, b];
}
function natural(context) {
	return new Natural(context);
}
function Step(context, t) {
	this._context = context;
	this._t = t;
}
Step.prototype = {
	areaStart: function() {
		this._line = 0;
	},
	areaEnd: function() {
		this._line = NaN;
	},
	lineStart: function() {
		this._x = this._y = NaN;
		this._point = 0;
	},
	lineEnd: function() {
		if (0 < this._t && this._t < 1 && this._point === 2) this._context.lineTo(this._x, this._y);
		if (this._line || this._line !== 0 && this._point === 1) this._context.closePath();
		if (this._line >= 0) this._t = 1 - this._t, this._line = 1 - this._line;
	},
	point: function(x, y) {
		x = +x, y = +y;
		switch (this._point) {
			case 0:
				this._point = 1;
				this._line ? this._context.lineTo(x, y) : this._context.moveTo(x, y);
				break;
			case 1: this._point = 2;
			default: if (this._t <= 0) {
				this._context.lineTo(this._x, y);
				this._context.lineTo(x, y);
			} else {
				var x1 = this._x * (1 - this._t) + x * this._t;
				this._context.lineTo(x1, this._y);
				this._context.lineTo(x1, y);
			}
		}
		this._x = x, this._y = y;
	}
};
function step(context) {
	return new Step(context, .5);
}
function stepBefore(context) {
	return new Step(context, 0);
}
function stepAfter(context) {
	return new Step(context, 1);
}
// node_modules/@observablehq/plot/src/defined.js
function defined(x) {
	return x != null && !Number.isNaN(x);
}
function ascendingDefined(a, b) {
	return +defined(b) - +defined(a) || ascending$1(a, b);
}
function descendingDefined(a, b) {
	return +defined(b) - +defined(a) || descending(a, b);
}
function nonempty(x) {
	return x != null && `${x}` !== "";
}
function finite(x) {
	return isFinite(x) ? x : NaN;
}
function positive(x) {
	return x > 0 && isFinite(x) ? x : NaN;
}
function negative(x) {
	return x < 0 && isFinite(x) ? x : NaN;
}
// node_modules/isoformat/src/format.js
function format(date, fallback) {
	if (!(date instanceof Date)) date = /* @__PURE__ */ new Date(+date);
	if (isNaN(date)) return typeof fallback === "function" ? fallback(date) : fallback;
	const hours = date.getUTCHours();
	const minutes = date.getUTCMinutes();
	const seconds = date.getUTCSeconds();
	const milliseconds = date.getUTCMilliseconds();
	return `${formatYear(date.getUTCFullYear(), 4)}-${pad(date.getUTCMonth() + 1, 2)}-${pad(date.getUTCDate(), 2)}${hours || minutes || seconds || milliseconds ? `T${pad(hours, 2)}:${pad(minutes, 2)}${seconds || milliseconds ? `:${pad(seconds, 2)}${milliseconds ? `.${pad(milliseconds, 3)}` : ``}` : ``}Z` : ``}`;
}
function formatYear(year) {
	return year < 0 ? `-${pad(-year, 6)}` : year > 9999 ? `+${pad(year, 6)}` : pad(year, 4);
}
function pad(value, width) {
	return `${value}`.padStart(width, "0");
}
// node_modules/isoformat/src/parse.js
var re = /^(?:[-+]\d{2})?\d{4}(?:-\d{2}(?:-\d{2})?)?(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d{3})?)?(?:Z|[-+]\d{2}:?\d{2})?)?$/;
function parse(string, fallback) {
	if (!re.test(string += "")) return typeof fallback === "function" ? fallback(string) : fallback;
	return new Date(string);
}
// node_modules/@observablehq/plot/src/order.js
function orderof(values) {
	if (values == null) return;
	const first = values[0];
	const last = values[values.length - 1];
	return descending(first, last);
}
// node_modules/@observablehq/plot/src/time.js
var durationSecond = 1e3;
var durationMinute = durationSecond * 60;
var durationHour = durationMinute * 60;
var durationDay = durationHour * 24;
var durationWeek = durationDay * 7;
var durationMonth = durationDay * 30;
var durationYear = durationDay * 365;
var tickIntervals = [
	["millisecond", 1],
	["2 milliseconds", 2],
	["5 milliseconds", 5],
	["10 milliseconds", 10],
	["20 milliseconds", 20],
	["50 milliseconds", 50],
	["100 milliseconds", 100],
	["200 milliseconds", 200],
	["500 milliseconds", 500],
	["second", durationSecond],
	["5 seconds", 5 * durationSecond],
	["15 seconds", 15 * durationSecond],
	["30 seconds", 30 * durationSecond],
	["minute", durationMinute],
	["5 minutes", 5 * durationMinute],
	["15 minutes", 15 * durationMinute],
	["30 minutes", 30 * durationMinute],
	["hour", durationHour],
	["3 hours", 3 * durationHour],
	["6 hours", 6 * durationHour],
	["12 hours", 12 * durationHour],
	["day", durationDay],
	["2 days", 2 * durationDay],
	["week", durationWeek],
	["2 weeks", 2 * durationWeek],
	["month", durationMonth],
	["3 months", 3 * durationMonth],
	["6 months", 6 * durationMonth],
	["year", durationYear],
	["2 years", 2 * durationYear],
	["5 years", 5 * durationYear],
	["10 years", 10 * durationYear],
	["20 years", 20 * durationYear],
	["50 years", 50 * durationYear],
	["100 years", 100 * durationYear]
];
var durations = /* @__PURE__ */ new Map([
	["second", durationSecond],
	["minute", durationMinute],
	["hour", durationHour],
	["day", durationDay],
	["monday", durationWeek],
	["tuesday", durationWeek],
	["wednesday", durationWeek],
	["thursday", durationWeek],
	["friday", durationWeek],
	["saturday", durationWeek],
	["sunday", durationWeek],
	["week", durationWeek],
	["month", durationMonth],
	["year", durationYear]
]);
var timeIntervals = /* @__PURE__ */ new Map([
	["second", second$1],
	["minute", timeMinute],
	["hour", timeHour],
	["day", timeDay],
	["monday", timeMonday],
	["tuesday", timeTuesday],
	["wednesday", timeWednesday],
	["thursday", timeThursday],
	["friday", timeFriday],
	["saturday", timeSaturday],
	["sunday", timeSunday],
	["week", timeSunday],
	["month", timeMonth],
	["year", timeYear]
]);
var utcIntervals = /* @__PURE__ */ new Map([
	["second", second$1],
	["minute", utcMinute],
	["hour", utcHour],
	["day", unixDay],
	["monday", utcMonday],
	["tuesday", utcTuesday],
	["wednesday", utcWednesday],
	["thursday", utcThursday],
	["friday", utcFriday],
	["saturday", utcSaturday],
	["sunday", utcSunday],
	["week", utcSunday],
	["month", utcMonth],
	["year", utcYear]
]);
var intervalDuration = Symbol("intervalDuration");
var intervalType = Symbol("intervalType");
for (const [name, interval] of timeIntervals) {
	interval[intervalDuration] = durations.get(name);
	interval[intervalType] = "time";
}
for (const [name, interval] of utcIntervals) {
	interval[intervalDuration] = durations.get(name);
	interval[intervalType] = "utc";
}
var utcFormatIntervals = [
	[
		"year",
		utcYear,
		"utc"
	],
	[
		"month",
		utcMonth,
		"utc"
	],
	[
		"day",
		unixDay,
		"utc",
		6 * durationMonth
	],
	[
		"hour",
		utcHour,
		"utc",
		3 * durationDay
	],
	[
		"minute",
		utcMinute,
		"utc",
		6 * durationHour
	],
	[
		"second",
		second$1,
		"utc",
		30 * durationMinute
	]
];
var timeFormatIntervals = [
	[
		"year",
		timeYear,
		"time"
	],
	[
		"month",
		timeMonth,
		"time"
	],
	[
		"day",
		timeDay,
		"time",
		6 * durationMonth
	],
	[
		"hour",
		timeHour,
		"time",
		3 * durationDay
	],
	[
		"minute",
		timeMinute,
		"time",
		6 * durationHour
	],
	[
		"second",
		second$1,
		"time",
		30 * durationMinute
	]
];
var formatIntervals = [
	utcFormatIntervals[0],
	timeFormatIntervals[0],
	utcFormatIntervals[1],
	timeFormatIntervals[1],
	utcFormatIntervals[2],
	timeFormatIntervals[2],
	...utcFormatIntervals.slice(3)
];
function parseTimeInterval(input) {
	let name = `${input}`.toLowerCase();
	if (name.endsWith("s")) name = name.slice(0, -1);
	let period = 1;
	const match = /^(?:(\d+)\s+)/.exec(name);
	if (match) {
		name = name.slice(match[0].length);
		period = +match[1];
	}
	switch (name) {
		case "quarter":
			name = "month";
			period *= 3;
			break;
		case "half":
			name = "month";
			period *= 6;
	}
	let interval = utcIntervals.get(name);
	if (!interval) throw new Error(`unknown interval: ${input}`);
	if (period > 1 && !interval.every) throw new Error(`non-periodic interval: ${name}`);
	return [name, period];
}
function timeInterval(input) {
	return asInterval(parseTimeInterval(input), "time");
}
function utcInterval(input) {
	return asInterval(parseTimeInterval(input), "utc");
}
function asInterval([name, period], type) {
	let interval = (type === "time" ? timeIntervals : utcIntervals).get(name);
	if (period > 1) {
		interval = interval.every(period);
		interval[intervalDuration] = durations.get(name) * period;
		interval[intervalType] = type;
	}
	return interval;
}
function generalizeTimeInterval(interval, n) {
	if (!(n > 1)) return;
	const duration = interval[intervalDuration];
	if (!tickIntervals.some(([, d]) => d === duration)) return;
	if (duration % durationDay === 0 && durationDay < duration && duration < durationMonth) return;
	const [i] = tickIntervals[bisector(([, step]) => Math.log(step)).center(tickIntervals, Math.log(duration * n))];
	return (interval[intervalType] === "time" ? timeInterval : utcInterval)(i);
}
function formatTimeInterval(name, type, anchor) {
	const format = type === "time" ? timeFormat : utcFormat;
	if (anchor == null) return format(name === "year" ? "%Y" : name === "month" ? "%Y-%m" : name === "day" ? "%Y-%m-%d" : name === "hour" || name === "minute" ? "%Y-%m-%dT%H:%M" : name === "second" ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%dT%H:%M:%S.%L");
	const template = getTimeTemplate(anchor);
	switch (name) {
		case "millisecond": return formatConditional(format(".%L"), format(":%M:%S"), template);
		case "second": return formatConditional(format(":%S"), format("%-I:%M"), template);
		case "minute": return formatConditional(format("%-I:%M"), format("%p"), template);
		case "hour": return formatConditional(format("%-I %p"), format("%b %-d"), template);
		case "day": return formatConditional(format("%-d"), format("%b"), template);
		case "month": return formatConditional(format("%b"), format("%Y"), template);
		case "year": return format("%Y");
	}
	throw new Error("unable to format time ticks");
}
function getTimeTemplate(anchor) {
	return anchor === "left" || anchor === "right" ? (f1, f2) => `\n${f1}\n${f2}` : anchor === "top" ? (f1, f2) => `${f2}\n${f1}` : (f1, f2) => `${f1}\n${f2}`;
}
function getFormatIntervals(type) {
	return type === "time" ? timeFormatIntervals : type === "utc" ? utcFormatIntervals : formatIntervals;
}
function inferTimeFormat(type, dates, anchor) {
	const step = max(pairs(dates, (a, b) => Math.abs(b - a)));
	if (step < 1e3) return formatTimeInterval("millisecond", "utc", anchor);
	for (const [name, interval, intervalType, maxStep] of getFormatIntervals(type)) {
		if (step > maxStep) break;
		if (name === "hour" && !step) break;
		if (dates.every((d) => interval.floor(d) >= d)) return formatTimeInterval(name, intervalType, anchor);
	}
}
function formatConditional(format1, format2, template) {
	return (x, i, X) => {
		const f1 = format1(x, i);
		const f2 = format2(x, i);
		const j = i - orderof(X);
		return i !== j && X[j] !== void 0 && f2 === format2(X[j], j) ? f1 : template(f1, f2);
	};
}
// node_modules/@observablehq/plot/src/options.js
var TypedArray = Object.getPrototypeOf(Uint8Array);
var objectToString = Object.prototype.toString;
function isArray(value) {
	return value instanceof Array || value instanceof TypedArray;
}
function isNumberArray(value) {
	return value instanceof TypedArray && !isBigIntArray(value);
}
function isNumberType(type) {
	return type?.prototype instanceof TypedArray && !isBigIntType(type);
}
function isBigIntArray(value) {
	return value instanceof BigInt64Array || value instanceof BigUint64Array;
}
function isBigIntType(type) {
	return type === BigInt64Array || type === BigUint64Array;
}
var reindex = Symbol("reindex");
function valueof(data, value, type) {
	const valueType = typeof value;
	return valueType === "string" ? isArrowTable(data) ? maybeTypedArrowify(data.getChild(value), type) : maybeTypedMap(data, field(value), type) : valueType === "function" ? maybeTypedMap(data, value, type) : valueType === "number" || value instanceof Date || valueType === "boolean" ? map$1(data, constant(value), type) : typeof value?.transform === "function" ? maybeTypedArrayify(value.transform(data), type) : maybeTake(maybeTypedArrayify(value, type), data?.[reindex]);
}
function maybeTake(values, index) {
	return values != null && index ? take(values, index) : values;
}
function maybeTypedMap(data, f, type) {
	return map$1(data, isNumberType(type) ? (d, i) => coerceNumber(f(d, i)) : f, type);
}
function maybeTypedArrayify(data, type) {
	return type === void 0 ? arrayify(data) : isArrowVector(data) ? maybeTypedArrowify(data, type) : data instanceof type ? data : type.from(data, isNumberType(type) && !isNumberArray(data) ? coerceNumber : void 0);
}
function maybeTypedArrowify(vector, type) {
	return vector == null ? vector : (type === void 0 || type === Array) && isArrowDateType(vector.type) ? coerceDates(vectorToArray(vector)) : maybeTypedArrayify(vectorToArray(vector), type);
}
function vectorToArray(vector) {
	return vector.nullCount ? vector.toJSON() : vector.toArray();
}
var singleton = [null];
var field = (name) => (d) => {
	const v = d[name];
	return v === void 0 && d.type === "Feature" ? d.properties?.[name] : v;
};
var indexOf = { transform: range };
var identity$1 = { transform: (d) => d };
var one = () => 1;
var yes = () => true;
var string = (x) => x == null ? x : `${x}`;
var number$2 = (x) => x == null ? x : +x;
var first = (x) => x ? x[0] : void 0;
var second = (x) => x ? x[1] : void 0;
var constant = (x) => () => x;
function percentile(reduce) {
	const p = +`${reduce}`.slice(1) / 100;
	return (I, f) => quantile$1(I, p, f);
}
function coerceNumbers(values) {
	return isNumberArray(values) ? values : map$1(values, coerceNumber, Float64Array);
}
function coerceNumber(x) {
	return x == null ? NaN : Number(x);
}
function coerceDates(values) {
	return map$1(values, coerceDate);
}
function coerceDate(x) {
	return x instanceof Date && !isNaN(x) ? x : typeof x === "string" ? parse(x) : x == null || isNaN(x = Number(x)) ? void 0 : new Date(x);
}
function maybeColorChannel(value, defaultValue) {
	if (value === void 0) value = defaultValue;
	return value === null ? [void 0, "none"] : isColor(value) ? [void 0, value] : [value, void 0];
}
function maybeNumberChannel(value, defaultValue) {
	if (value === void 0) value = defaultValue;
	return value === null || typeof value === "number" ? [void 0, value] : [value, void 0];
}
function maybeKeyword(input, name, allowed) {
	if (input != null) return keyword(input, name, allowed);
}
function keyword(input, name, allowed) {
	const i = `${input}`.toLowerCase();
	if (!allowed.includes(i)) throw new Error(`invalid ${name}: ${input}`);
	return i;
}
function dataify(data) {
	return isArrowTable(data) ? data : arrayify(data);
}
function arrayify(values) {
	if (values == null || isArray(values)) return values;
	if (isArrowVector(values)) return maybeTypedArrowify(values);
	if (isGeoJSON(values)) switch (values.type) {
		case "FeatureCollection": return values.features;
		case "GeometryCollection": return values.geometries;
		default: return [values];
	}
	return Array.from(values);
}
function isGeoJSON(x) {
	switch (x?.type) {
		case "FeatureCollection":
		case "GeometryCollection":
		case "Feature":
		case "LineString":
		case "MultiLineString":
		case "MultiPoint":
		case "MultiPolygon":
		case "Point":
		case "Polygon":
		case "Sphere": return true;
		default: return false;
	}
}
function map$1(values, f, type = Array) {
	return values == null ? values : values instanceof type ? values.map(f) : type.from(values, f);
}
function slice(values, type = Array) {
	return values instanceof type ? values.slice() : type.from(values);
}
function hasY({ y, y1, y2 }) {
	return y !== void 0 || y1 !== void 0 || y2 !== void 0;
}
function isObject(option) {
	return option?.toString === objectToString;
}
function isScaleOptions(option) {
	return isObject(option) && (option.type !== void 0 || option.domain !== void 0);
}
function isOptions(option) {
	return isObject(option) && typeof option.transform !== "function";
}
function isDomainSort(sort) {
	return isOptions(sort) && sort.value === void 0 && sort.channel === void 0;
}
function maybeZero(x, x1, x2, x3 = identity$1) {
	if (x1 === void 0 && x2 === void 0) x1 = 0, x2 = x === void 0 ? x3 : x;
	else if (x1 === void 0) x1 = x === void 0 ? 0 : x;
	else if (x2 === void 0) x2 = x === void 0 ? 0 : x;
	return [x1, x2];
}
function maybeTuple(x, y) {
	return x === void 0 && y === void 0 ? [first, second] : [x, y];
}
function maybeZ({ z, fill, stroke } = {}) {
	if (z === void 0) [z] = maybeColorChannel(fill);
	if (z === void 0) [z] = maybeColorChannel(stroke);
	return z;
}
function lengthof(data) {
	return isArray(data) ? data.length : data?.numRows;
}
function range(data) {
	const n = lengthof(data);
	const r = new Uint32Array(n);
	for (let i = 0; i < n; ++i) r[i] = i;
	return r;
}
function take(values, index) {
	return isArray(values) ? map$1(index, (i) => values[i], values.constructor) : map$1(index, (i) => values.at(i));
}
function subarray(I, i, j) {
	return I.subarray ? I.subarray(i, j) : I.slice(i, j);
}
function keyof(value) {
	return value !== null && typeof value === "object" ? value.valueOf() : value;
}
function maybeInput(key, options) {
	if (options[key] !== void 0) return options[key];
	switch (key) {
		case "x1":
		case "x2":
			key = "x";
			break;
		case "y1":
		case "y2": key = "y";
	}
	return options[key];
}
function column$1(source) {
	let value;
	return [{
		transform: () => value,
		label: labelof(source)
	}, (v) => value = v];
}
function maybeColumn(source) {
	return source == null ? [source] : column$1(source);
}
function labelof(value, defaultValue) {
	return typeof value === "string" ? value : value && value.label !== void 0 ? value.label : defaultValue;
}
function mid(x1, x2) {
	return {
		transform(data) {
			const X1 = x1.transform(data);
			const X2 = x2.transform(data);
			return isTemporal(X1) || isTemporal(X2) ? map$1(X1, (_, i) => /* @__PURE__ */ new Date((+X1[i] + +X2[i]) / 2)) : map$1(X1, (_, i) => (+X1[i] + +X2[i]) / 2, Float64Array);
		},
		label: x1.label
	};
}
function maybeApplyInterval(V, scale) {
	const t = maybeIntervalTransform(scale?.interval, scale?.type);
	return t ? map$1(V, t) : V;
}
function maybeIntervalTransform(interval, type) {
	const i = maybeInterval(interval, type);
	return i && ((v) => defined(v) ? i.floor(v) : v);
}
function maybeInterval(interval, type) {
	if (interval == null) return;
	if (typeof interval === "number") return numberInterval(interval);
	if (typeof interval === "string") return (type === "time" ? timeInterval : utcInterval)(interval);
	if (typeof interval.floor !== "function") throw new Error("invalid interval; missing floor method");
	if (typeof interval.offset !== "function") throw new Error("invalid interval; missing offset method");
	return interval;
}
function numberInterval(interval) {
	interval = +interval;
	if (0 < interval && interval < 1 && Number.isInteger(1 / interval)) interval = -1 / interval;
	const n = Math.abs(interval);
	return interval < 0 ? {
		floor: (d) => Math.floor(d * n) / n,
		offset: (d, s = 1) => (d * n + Math.floor(s)) / n,
		range: (lo, hi) => range$1(Math.ceil(lo * n), hi * n).map((x) => x / n)
	} : {
		floor: (d) => Math.floor(d / n) * n,
		offset: (d, s = 1) => d + n * Math.floor(s),
		range: (lo, hi) => range$1(Math.ceil(lo / n), hi / n).map((x) => x * n)
	};
}
function maybeRangeInterval(interval, type) {
	interval = maybeInterval(interval, type);
	if (interval && typeof interval.range !== "function") throw new Error("invalid interval: missing range method");
	return interval;
}
function maybeNiceInterval(interval, type) {
	interval = maybeRangeInterval(interval, type);
	if (interval && typeof interval.ceil !== "function") throw new Error("invalid interval: missing ceil method");
	return interval;
}
function isTimeInterval(t) {
	return isInterval(t) && typeof t?.floor === "function" && t.floor() instanceof Date;
}
function isInterval(t) {
	return typeof t?.range === "function";
}
function maybeValue(value) {
	return value === void 0 || isOptions(value) ? value : { value };
}
function numberChannel(source) {
	return source == null ? null : {
		transform: (data) => valueof(data, source, Float64Array),
		label: labelof(source)
	};
}
function isIterable(value) {
	return value && typeof value[Symbol.iterator] === "function";
}
function isTextual(values) {
	for (const value of values) {
		if (value == null) continue;
		return typeof value !== "object" || value instanceof Date;
	}
}
function isOrdinal(values) {
	for (const value of values) {
		if (value == null) continue;
		const type = typeof value;
		return type === "string" || type === "boolean";
	}
}
function isTemporal(values) {
	for (const value of values) {
		if (value == null) continue;
		return value instanceof Date;
	}
}
function isTemporalString(values) {
	for (const value of values) {
		if (value == null) continue;
		return typeof value === "string" && isNaN(value) && parse(value);
	}
}
function isNumericString(values) {
	for (const value of values) {
		if (value == null) continue;
		if (typeof value !== "string") return false;
		if (!value.trim()) continue;
		return !isNaN(value);
	}
}
function isNumeric(values) {
	for (const value of values) {
		if (value == null) continue;
		return typeof value === "number";
	}
}
function isEvery(values, is) {
	let every;
	for (const value of values) {
		if (value == null) continue;
		if (!is(value)) return false;
		every = true;
	}
	return every;
}
var namedColors = new Set("none,currentcolor,transparent,aliceblue,antiquewhite,aqua,aquamarine,azure,beige,bisque,black,blanchedalmond,blue,blueviolet,brown,burlywood,cadetblue,chartreuse,chocolate,coral,cornflowerblue,cornsilk,crimson,cyan,darkblue,darkcyan,darkgoldenrod,darkgray,darkgreen,darkgrey,darkkhaki,darkmagenta,darkolivegreen,darkorange,darkorchid,darkred,darksalmon,darkseagreen,darkslateblue,darkslategray,darkslategrey,darkturquoise,darkviolet,deeppink,deepskyblue,dimgray,dimgrey,dodgerblue,firebrick,floralwhite,forestgreen,fuchsia,gainsboro,ghostwhite,gold,goldenrod,gray,green,greenyellow,grey,honeydew,hotpink,indianred,indigo,ivory,khaki,lavender,lavenderblush,lawngreen,lemonchiffon,lightblue,lightcoral,lightcyan,lightgoldenrodyellow,lightgray,lightgreen,lightgrey,lightpink,lightsalmon,lightseagreen,lightskyblue,lightslategray,lightslategrey,lightsteelblue,lightyellow,lime,limegreen,linen,magenta,maroon,mediumaquamarine,mediumblue,mediumorchid,mediumpurple,mediumseagreen,mediumslateblue,mediumspringgreen,mediumturquoise,mediumvioletred,midnightblue,mintcream,mistyrose,moccasin,navajowhite,navy,oldlace,olive,olivedrab,orange,orangered,orchid,palegoldenrod,palegreen,paleturquoise,palevioletred,papayawhip,peachpuff,peru,pink,plum,powderblue,purple,rebeccapurple,red,rosybrown,royalblue,saddlebrown,salmon,sandybrown,seagreen,seashell,sienna,silver,skyblue,slateblue,slategray,slategrey,snow,springgreen,steelblue,tan,teal,thistle,tomato,turquoise,violet,wheat,white,whitesmoke,yellow".split(","));
function isColor(value) {
	if (typeof value !== "string") return false;
	value = value.toLowerCase().trim();
	return /^#[0-9a-f]{3,8}$/.test(value) || /^(?:url|var|rgb|rgba|hsl|hsla|hwb|lab|lch|oklab|oklch|color|color-mix)\(.*\)$/.test(value) || namedColors.has(value);
}
function isOpacity(value) {
	return typeof value === "number" && (0 <= value && value <= 1 || isNaN(value));
}
function isNoneish(value) {
	return value == null || isNone(value);
}
function isNone(value) {
	return /^\s*none\s*$/i.test(value);
}
function isRound(value) {
	return /^\s*round\s*$/i.test(value);
}
function maybeAnchor$1(value, name) {
	return maybeKeyword(value, name, [
		"middle",
		"top-left",
		"top",
		"top-right",
		"right",
		"bottom-right",
		"bottom",
		"bottom-left",
		"left"
	]);
}
function maybeFrameAnchor(value = "middle") {
	return maybeAnchor$1(value, "frameAnchor");
}
function inherit(options = {}, ...rest) {
	let o = options;
	for (const defaults of rest) for (const key in defaults) if (o[key] === void 0) {
		const value = defaults[key];
		if (o === options) o = {
			...o,
			[key]: value
		};
		else o[key] = value;
	}
	return o;
}
function named(things) {
	console.warn("named iterables are deprecated; please use an object instead");
	const names = /* @__PURE__ */ new Set();
	return Object.fromEntries(Array.from(things, (thing) => {
		const { name } = thing;
		if (name == null) throw new Error("missing name");
		const key = `${name}`;
		if (key === "__proto__") throw new Error(`illegal name: ${key}`);
		if (names.has(key)) throw new Error(`duplicate name: ${key}`);
		names.add(key);
		return [name, thing];
	}));
}
function maybeNamed(things) {
	return isIterable(things) ? named(things) : things;
}
function maybeClip(clip) {
	if (clip === true) clip = "frame";
	else if (clip === false) clip = null;
	else if (!isGeoJSON(clip) && clip != null) {
		clip = keyword(clip, "clip", ["frame", "sphere"]);
		if (clip === "sphere") clip = { type: "Sphere" };
	}
	return clip;
}
function isArrowTable(value) {
	return value && typeof value.getChild === "function" && typeof value.toArray === "function" && value.schema && Array.isArray(value.schema.fields);
}
function isArrowVector(value) {
	return value && typeof value.toArray === "function" && value.type;
}
function isArrowDateType(type) {
	return type && (type.typeId === 8 || type.typeId === 10) && type.unit === 1;
}
// node_modules/@observablehq/plot/src/scales/index.js
var position = Symbol("position");
var color$1 = Symbol("color");
var radius = Symbol("radius");
var length = Symbol("length");
var opacity = Symbol("opacity");
var symbol = Symbol("symbol");
var projection = Symbol("projection");
var registry = /* @__PURE__ */ new Map([
	["x", position],
	["y", position],
	["fx", position],
	["fy", position],
	["r", radius],
	["color", color$1],
	["opacity", opacity],
	["symbol", symbol],
	["length", length],
	["projection", projection]
]);
function isPosition(kind) {
	return kind === position || kind === projection;
}
function hasNumericRange(kind) {
	return kind === position || kind === radius || kind === length || kind === opacity;
}
var sqrt4_3 = 2 / Math.sqrt(3);
var symbols = /* @__PURE__ */ new Map([
	["asterisk", asterisk],
	["circle", circle],
	["cross", cross],
	["diamond", diamond],
	["diamond2", diamond2],
	["hexagon", { draw(context, size) {
		const rx = Math.sqrt(size / Math.PI), ry = rx * sqrt4_3, hy = ry / 2;
		context.moveTo(0, ry);
		context.lineTo(rx, hy);
		context.lineTo(rx, -hy);
		context.lineTo(0, -ry);
		context.lineTo(-rx, -hy);
		context.lineTo(-rx, hy);
		context.closePath();
	} }],
	["plus", plus],
	["square", square],
	["square2", square2],
	["star", star],
	["times", times],
	["triangle", triangle],
	["triangle2", triangle2],
	["wye", wye]
]);
function isSymbolObject(value) {
	return value && typeof value.draw === "function";
}
function isSymbol(value) {
	if (isSymbolObject(value)) return true;
	if (typeof value !== "string") return false;
	return symbols.has(value.toLowerCase());
}
function maybeSymbol(symbol) {
	if (symbol == null || isSymbolObject(symbol)) return symbol;
	const value = symbols.get(`${symbol}`.toLowerCase());
	if (value) return value;
	throw new Error(`invalid symbol: ${symbol}`);
}
function maybeSymbolChannel(symbol) {
	if (symbol == null || isSymbolObject(symbol)) return [void 0, symbol];
	if (typeof symbol === "string") {
		const value = symbols.get(`${symbol}`.toLowerCase());
		if (value) return [void 0, value];
	}
	return [symbol, void 0];
}
// node_modules/@observablehq/plot/src/transforms/basic.js
function basic({ filter: f1, sort: s1, reverse: r1, transform: t1, initializer: i1, ...options } = {}, transform) {
	if (t1 === void 0) {
		if (f1 != null) t1 = filterTransform(f1);
		if (s1 != null && !isDomainSort(s1)) t1 = composeTransform(t1, sortTransform(s1));
		if (r1) t1 = composeTransform(t1, reverseTransform);
	}
	if (transform != null && i1 != null) throw new Error("transforms cannot be applied after initializers");
	return {
		...options,
		...(s1 === null || isDomainSort(s1)) && { sort: s1 },
		transform: composeTransform(t1, transform)
	};
}
function initializer({ filter: f1, sort: s1, reverse: r1, initializer: i1, ...options } = {}, initializer) {
	if (i1 === void 0) {
		if (f1 != null) i1 = filterTransform(f1);
		if (s1 != null && !isDomainSort(s1)) i1 = composeInitializer(i1, sortTransform(s1));
		if (r1) i1 = composeInitializer(i1, reverseTransform);
	}
	return {
		...options,
		...(s1 === null || isDomainSort(s1)) && { sort: s1 },
		initializer: composeInitializer(i1, initializer)
	};
}
function composeTransform(t1, t2) {
	if (t1 == null) return t2 === null ? void 0 : t2;
	if (t2 == null) return t1 === null ? void 0 : t1;
	return function(data, facets, plotOptions) {
		({data, facets} = t1.call(this, data, facets, plotOptions));
		return t2.call(this, dataify(data), facets, plotOptions);
	};
}
function composeInitializer(i1, i2) {
	if (i1 == null) return i2 === null ? void 0 : i2;
	if (i2 == null) return i1 === null ? void 0 : i1;
	return function(data, facets, channels, ...args) {
		let c1, d1, f1, c2, d2, f2;
		({data: d1 = data, facets: f1 = facets, channels: c1} = i1.call(this, data, facets, channels, ...args));
		({data: d2 = d1, facets: f2 = f1, channels: c2} = i2.call(this, d1, f1, {
			...channels,
			...c1
		}, ...args));
		return {
			data: d2,
			facets: f2,
			channels: {
				...c1,
				...c2
			}
		};
	};
}
function apply(options, t) {
	return (options.initializer != null ? initializer : basic)(options, t);
}
function filterTransform(value) {
	return (data, facets) => {
		const V = valueof(data, value);
		return {
			data,
			facets: facets.map((I) => I.filter((i) => V[i]))
		};
	};
}
function reverseTransform(data, facets) {
	return {
		data,
		facets: facets.map((I) => I.slice().reverse())
	};
}
function sort(order, { sort, ...options } = {}) {
	return {
		...(isOptions(order) && order.channel !== void 0 ? initializer : apply)(options, sortTransform(order)),
		sort: isDomainSort(sort) ? sort : null
	};
}
function sortTransform(value) {
	return (typeof value === "function" && value.length !== 1 ? sortData : sortValue)(value);
}
function sortData(compare) {
	return (data, facets) => {
		const compareData = isArray(data) ? (i, j) => compare(data[i], data[j]) : (i, j) => compare(data.get(i), data.get(j));
		return {
			data,
			facets: facets.map((I) => I.slice().sort(compareData))
		};
	};
}
function sortValue(value) {
	let channel, order;
	({channel, value, order} = { ...maybeValue(value) });
	const negate = channel?.startsWith("-");
	if (negate) channel = channel.slice(1);
	if (order === void 0) order = negate ? descendingDefined : ascendingDefined;
	if (typeof order !== "function") switch (`${order}`.toLowerCase()) {
		case "ascending":
			order = ascendingDefined;
			break;
		case "descending":
			order = descendingDefined;
			break;
		default: throw new Error(`invalid order: ${order}`);
	}
	return (data, facets, channels) => {
		let V;
		if (channel === void 0) V = valueof(data, value);
		else {
			if (channels === void 0) throw new Error("channel sort requires an initializer");
			V = channels[channel];
			if (!V) return {};
			V = V.value;
		}
		const compareValue = (i, j) => order(V[i], V[j]);
		return {
			data,
			facets: facets.map((I) => I.slice().sort(compareValue))
		};
	};
}
// node_modules/@observablehq/plot/src/transforms/group.js
function hasOutput(outputs, ...names) {
	for (const { name } of outputs) if (names.includes(name)) return true;
	return false;
}
function maybeOutputs(outputs, inputs, asOutput = maybeOutput) {
	const entries = Object.entries(outputs);
	if (inputs.title != null && outputs.title === void 0) entries.push(["title", reduceTitle]);
	if (inputs.href != null && outputs.href === void 0) entries.push(["href", reduceFirst]);
	return entries.filter(([, reduce]) => reduce !== void 0).map(([name, reduce]) => reduce === null ? nullOutput(name) : asOutput(name, reduce, inputs));
}
function maybeOutput(name, reduce, inputs, asEvaluator = maybeEvaluator) {
	let scale;
	if (isObject(reduce) && "reduce" in reduce) scale = reduce.scale, reduce = reduce.reduce;
	const evaluator = asEvaluator(name, reduce, inputs);
	const [output, setOutput] = column$1(evaluator.label);
	let O;
	return {
		name,
		output: scale === void 0 ? output : {
			value: output,
			scale
		},
		initialize(data) {
			evaluator.initialize(data);
			O = setOutput([]);
		},
		scope(scope, I) {
			evaluator.scope(scope, I);
		},
		reduce(I, extent) {
			O.push(evaluator.reduce(I, extent));
		}
	};
}
function nullOutput(name) {
	return {
		name,
		initialize() {},
		scope() {},
		reduce() {}
	};
}
function maybeEvaluator(name, reduce, inputs, asReduce = maybeReduce) {
	const input = maybeInput(name, inputs);
	const reducer = asReduce(reduce, input);
	let V, context;
	return {
		label: labelof(reducer === reduceCount ? null : input, reducer.label),
		initialize(data) {
			V = input === void 0 ? data : valueof(data, input);
			if (reducer.scope === "data") context = reducer.reduceIndex(range(data), V);
		},
		scope(scope, I) {
			if (reducer.scope === scope) context = reducer.reduceIndex(I, V);
		},
		reduce(I, extent) {
			return reducer.scope == null ? reducer.reduceIndex(I, V, extent) : reducer.reduceIndex(I, V, context, extent);
		}
	};
}
function maybeGroup(I, X) {
	return X ? group(I, (i) => X[i]) : [[, I]];
}
function maybeReduce(reduce, value, fallback = invalidReduce) {
	if (reduce == null) return fallback(reduce);
	if (typeof reduce.reduceIndex === "function") return reduce;
	if (typeof reduce.reduce === "function" && isObject(reduce)) return reduceReduce(reduce);
	if (typeof reduce === "function") return reduceFunction(reduce);
	if (/^p\d{2}$/i.test(reduce)) return reduceAccessor(percentile(reduce));
	switch (`${reduce}`.toLowerCase()) {
		case "first": return reduceFirst;
		case "last": return reduceLast;
		case "identity": return reduceIdentity;
		case "count": return reduceCount;
		case "distinct": return reduceDistinct;
		case "sum": return value == null ? reduceCount : reduceSum;
		case "proportion": return reduceProportion(value, "data");
		case "proportion-facet": return reduceProportion(value, "facet");
		case "deviation": return reduceAccessor(deviation);
		case "min": return reduceAccessor(min$1);
		case "min-index": return reduceAccessor(minIndex);
		case "max": return reduceAccessor(max);
		case "max-index": return reduceAccessor(maxIndex);
		case "mean": return reduceMaybeTemporalAccessor(mean);
		case "median": return reduceMaybeTemporalAccessor(median);
		case "variance": return reduceAccessor(variance);
		case "mode": return reduceAccessor(mode);
	}
	return fallback(reduce);
}
function invalidReduce(reduce) {
	throw new Error(`invalid reduce: ${reduce}`);
}
function maybeSubgroup(outputs, inputs) {
	for (const name in inputs) {
		const value = inputs[name];
		if (value !== void 0 && !outputs.some((o) => o.name === name)) return value;
	}
}
function maybeSort(facets, sort, reverse) {
	if (sort) {
		const S = sort.output.transform();
		const compare = (i, j) => ascendingDefined(S[i], S[j]);
		facets.forEach((f) => f.sort(compare));
	}
	if (reverse) facets.forEach((f) => f.reverse());
}
function reduceReduce(reduce) {
	console.warn("deprecated reduce interface; implement reduceIndex instead.");
	return {
		...reduce,
		reduceIndex: reduce.reduce.bind(reduce)
	};
}
function reduceFunction(f) {
	return { reduceIndex(I, X, extent) {
		return f(take(X, I), extent);
	} };
}
function reduceAccessor(f) {
	return { reduceIndex(I, X) {
		return f(I, (i) => X[i]);
	} };
}
function reduceMaybeTemporalAccessor(f) {
	return { reduceIndex(I, X) {
		const x = f(I, (i) => X[i]);
		return isTemporal(X) ? new Date(x) : x;
	} };
}
var reduceIdentity = { reduceIndex(I, X) {
	return take(X, I);
} };
var reduceFirst = { reduceIndex(I, X) {
	return X[I[0]];
} };
var reduceTitle = { reduceIndex(I, X) {
	const groups = sort$1(rollup(I, (V) => V.length, (i) => X[i]), second);
	const top = groups.slice(-5).reverse();
	if (top.length < groups.length) {
		const bottom = groups.slice(0, -4);
		top[4] = [`… ${bottom.length.toLocaleString("en-US")} more`, sum(bottom, second)];
	}
	return top.map(([key, value]) => `${key} (${value.toLocaleString("en-US")})`).join("\n");
} };
var reduceLast = { reduceIndex(I, X) {
	return X[I[I.length - 1]];
} };
var reduceCount = {
	label: "Frequency",
	reduceIndex(I) {
		return I.length;
	}
};
var reduceDistinct = {
	label: "Distinct",
	reduceIndex(I, X) {
		const s = new InternSet();
		for (const i of I) s.add(X[i]);
		return s.size;
	}
};
var reduceSum = reduceAccessor(sum);
function reduceProportion(value, scope) {
	return value == null ? {
		scope,
		label: "Frequency",
		reduceIndex: (I, V, basis = 1) => I.length / basis
	} : {
		scope,
		reduceIndex: (I, V, basis = 1) => sum(I, (i) => V[i]) / basis
	};
}
var reduceZ = { reduceIndex(I, X, { z }) {
	return z;
} };
// node_modules/@observablehq/plot/src/channel.js
function createChannel(data, { scale, type, value, filter, hint, label = labelof(value) }, name) {
	if (hint === void 0 && typeof value?.transform === "function") hint = value.hint;
	return inferChannelScale(name, {
		scale,
		type,
		value: valueof(data, value),
		label,
		filter,
		hint
	});
}
function createChannels(channels, data) {
	return Object.fromEntries(Object.entries(channels).map(([name, channel]) => [name, createChannel(data, channel, name)]));
}
function valueObject(channels, scales) {
	const values = Object.fromEntries(Object.entries(channels).map(([name, { scale: scaleName, value }]) => {
		const scale = scaleName == null ? null : scales[scaleName];
		return [name, scale == null ? value : map$1(value, scale)];
	}));
	values.channels = channels;
	return values;
}
function inferChannelScale(name, channel) {
	const { scale, value } = channel;
	if (scale === true || scale === "auto") switch (name) {
		case "fill":
		case "stroke":
		case "color":
			channel.scale = scale !== true && isEvery(value, isColor) ? null : "color";
			channel.defaultScale = "color";
			break;
		case "fillOpacity":
		case "strokeOpacity":
		case "opacity":
			channel.scale = scale !== true && isEvery(value, isOpacity) ? null : "opacity";
			channel.defaultScale = "opacity";
			break;
		case "symbol":
			if (scale !== true && isEvery(value, isSymbol)) {
				channel.scale = null;
				channel.value = map$1(value, maybeSymbol);
			} else channel.scale = "symbol";
			channel.defaultScale = "symbol";
			break;
		default: channel.scale = registry.has(name) ? name : null;
	}
	else if (scale === false) channel.scale = null;
	else if (scale != null && !registry.has(scale)) throw new Error(`unknown scale: ${scale}`);
	return channel;
}
function channelDomain(data, facets, channels, facetChannels, options) {
	const { order: defaultOrder, reverse: defaultReverse, reduce: defaultReduce = true, limit: defaultLimit } = options;
	for (const x in options) {
		if (!registry.has(x)) continue;
		let { value: y, order = defaultOrder, reverse = defaultReverse, reduce = defaultReduce, limit = defaultLimit } = maybeValue(options[x]);
		const negate = y?.startsWith("-");
		if (negate) y = y.slice(1);
		order = order === void 0 ? negate !== (y === "width" || y === "height") ? descendingGroup : ascendingGroup : maybeOrder$1(order);
		if (reduce == null || reduce === false) continue;
		const X = x === "fx" || x === "fy" ? reindexFacetChannel(facets, facetChannels[x]) : findScaleChannel(channels, x);
		if (!X) throw new Error(`missing channel for scale: ${x}`);
		const XV = X.value;
		const [lo = 0, hi = Infinity] = isIterable(limit) ? limit : limit < 0 ? [limit] : [0, limit];
		if (y == null) X.domain = () => {
			let domain = Array.from(new InternSet(XV));
			if (reverse) domain = domain.reverse();
			if (lo !== 0 || hi !== Infinity) domain = domain.slice(lo, hi);
			return domain;
		};
		else {
			const YV = y === "data" ? data : y === "height" ? difference(channels, "y1", "y2") : y === "width" ? difference(channels, "x1", "x2") : values(channels, y, y === "y" ? "y2" : y === "x" ? "x2" : void 0);
			const reducer = maybeReduce(reduce === true ? "max" : reduce, YV);
			X.domain = () => {
				let domain = rollups(range(XV), (I) => reducer.reduceIndex(I, YV), (i) => XV[i]);
				if (order) domain.sort(order);
				if (reverse) domain.reverse();
				if (lo !== 0 || hi !== Infinity) domain = domain.slice(lo, hi);
				return domain.map(first);
			};
		}
	}
}
function findScaleChannel(channels, scale) {
	for (const name in channels) {
		const channel = channels[name];
		if (channel.scale === scale) return channel;
	}
}
function reindexFacetChannel(facets, channel) {
	const originalFacets = facets.original;
	if (originalFacets === facets) return channel;
	const V1 = channel.value;
	const V2 = channel.value = [];
	for (let i = 0; i < originalFacets.length; ++i) {
		const vi = V1[originalFacets[i][0]];
		for (const j of facets[i]) V2[j] = vi;
	}
	return channel;
}
function difference(channels, k1, k2) {
	const X1 = values(channels, k1);
	return map$1(values(channels, k2), (x2, i) => Math.abs(x2 - X1[i]), Float64Array);
}
function values(channels, name, alias) {
	let channel = channels[name];
	if (!channel && alias !== void 0) channel = channels[alias];
	if (channel) return channel.value;
	throw new Error(`missing channel: ${name}`);
}
function maybeOrder$1(order) {
	if (order == null || typeof order === "function") return order;
	switch (`${order}`.toLowerCase()) {
		case "ascending": return ascendingGroup;
		case "descending": return descendingGroup;
	}
	throw new Error(`invalid order: ${order}`);
}
function ascendingGroup([ak, av], [bk, bv]) {
	return ascendingDefined(av, bv) || ascendingDefined(ak, bk);
}
function descendingGroup([ak, av], [bk, bv]) {
	return descendingDefined(av, bv) || ascendingDefined(ak, bk);
}
function getSource(channels, key) {
	let channel = channels[key];
	if (!channel) return;
	while (channel.source) channel = channel.source;
	return channel.source === null ? null : channel;
}
// node_modules/@observablehq/plot/src/scales/schemes.js
var categoricalSchemes = /* @__PURE__ */ new Map([
	["accent", Accent],
	["category10", category10],
	["dark2", Dark2],
	["observable10", observable10],
	["paired", Paired],
	["pastel1", Pastel1],
	["pastel2", Pastel2],
	["set1", Set1],
	["set2", Set2],
	["set3", Set3],
	["tableau10", Tableau10]
]);
function isCategoricalScheme(scheme) {
	return scheme != null && categoricalSchemes.has(`${scheme}`.toLowerCase());
}
var ordinalSchemes = new Map([
	...categoricalSchemes,
	["brbg", scheme11(scheme$q, BrBG)],
	["prgn", scheme11(scheme$p, PRGn)],
	["piyg", scheme11(scheme$o, PiYG)],
	["puor", scheme11(scheme$n, PuOr)],
	["rdbu", scheme11(scheme$m, RdBu)],
	["rdgy", scheme11(scheme$l, RdGy)],
	["rdylbu", scheme11(scheme$k, RdYlBu)],
	["rdylgn", scheme11(scheme$j, RdYlGn)],
	["spectral", scheme11(scheme$i, Spectral)],
	["burd", scheme11r(scheme$m, RdBu)],
	["buylrd", scheme11r(scheme$k, RdYlBu)],
	["blues", scheme9(scheme$5, Blues)],
	["greens", scheme9(scheme$4, Greens)],
	["greys", scheme9(scheme$3, Greys)],
	["oranges", scheme9(scheme, Oranges)],
	["purples", scheme9(scheme$2, Purples)],
	["reds", scheme9(scheme$1, Reds)],
	["turbo", schemei(turbo)],
	["viridis", schemei(viridis)],
	["magma", schemei(magma)],
	["inferno", schemei(inferno)],
	["plasma", schemei(plasma)],
	["cividis", schemei(cividis)],
	["cubehelix", schemei(cubehelix)],
	["warm", schemei(warm)],
	["cool", schemei(cool)],
	["bugn", scheme9(scheme$h, BuGn)],
	["bupu", scheme9(scheme$g, BuPu)],
	["gnbu", scheme9(scheme$f, GnBu)],
	["orrd", scheme9(scheme$e, OrRd)],
	["pubu", scheme9(scheme$c, PuBu)],
	["pubugn", scheme9(scheme$d, PuBuGn)],
	["purd", scheme9(scheme$b, PuRd)],
	["rdpu", scheme9(scheme$a, RdPu)],
	["ylgn", scheme9(scheme$8, YlGn)],
	["ylgnbu", scheme9(scheme$9, YlGnBu)],
	["ylorbr", scheme9(scheme$7, YlOrBr)],
	["ylorrd", scheme9(scheme$6, YlOrRd)],
	["rainbow", schemeicyclical(rainbow)],
	["sinebow", schemeicyclical(sinebow)]
]);
function scheme9(scheme, interpolate) {
	return ({ length: n }) => {
		if (n === 1) return [scheme[3][1]];
		if (n === 2) return [scheme[3][1], scheme[3][2]];
		n = Math.max(3, Math.floor(n));
		return n > 9 ? quantize(interpolate, n) : scheme[n];
	};
}
function scheme11(scheme, interpolate) {
	return ({ length: n }) => {
		if (n === 2) return [scheme[3][0], scheme[3][2]];
		n = Math.max(3, Math.floor(n));
		return n > 11 ? quantize(interpolate, n) : scheme[n];
	};
}
function scheme11r(scheme, interpolate) {
	return ({ length: n }) => {
		if (n === 2) return [scheme[3][2], scheme[3][0]];
		n = Math.max(3, Math.floor(n));
		return n > 11 ? quantize((t) => interpolate(1 - t), n) : scheme[n].slice().reverse();
	};
}
function schemei(interpolate) {
	return ({ length: n }) => quantize(interpolate, Math.max(2, Math.floor(n)));
}
function schemeicyclical(interpolate) {
	return ({ length: n }) => quantize(interpolate, Math.floor(n) + 1).slice(0, -1);
}
function ordinalScheme(scheme) {
	const s = `${scheme}`.toLowerCase();
	if (!ordinalSchemes.has(s)) throw new Error(`unknown ordinal scheme: ${s}`);
	return ordinalSchemes.get(s);
}
function ordinalRange(scheme, length) {
	const s = ordinalScheme(scheme);
	const r = typeof s === "function" ? s({ length }) : s;
	return r.length !== length ? r.slice(0, length) : r;
}
function maybeBooleanRange(domain, scheme = "greys") {
	const range = /* @__PURE__ */ new Set();
	const [f, t] = ordinalRange(scheme, 2);
	for (const value of domain) {
		if (value == null) continue;
		if (value === true) range.add(t);
		else if (value === false) range.add(f);
		else return;
	}
	return [...range];
}
var quantitativeSchemes = /* @__PURE__ */ new Map([
	["brbg", BrBG],
	["prgn", PRGn],
	["piyg", PiYG],
	["puor", PuOr],
	["rdbu", RdBu],
	["rdgy", RdGy],
	["rdylbu", RdYlBu],
	["rdylgn", RdYlGn],
	["spectral", Spectral],
	["burd", (t) => RdBu(1 - t)],
	["buylrd", (t) => RdYlBu(1 - t)],
	["blues", Blues],
	["greens", Greens],
	["greys", Greys],
	["purples", Purples],
	["reds", Reds],
	["oranges", Oranges],
	["turbo", turbo],
	["viridis", viridis],
	["magma", magma],
	["inferno", inferno],
	["plasma", plasma],
	["cividis", cividis],
	["cubehelix", cubehelix],
	["warm", warm],
	["cool", cool],
	["bugn", BuGn],
	["bupu", BuPu],
	["gnbu", GnBu],
	["orrd", OrRd],
	["pubugn", PuBuGn],
	["pubu", PuBu],
	["purd", PuRd],
	["rdpu", RdPu],
	["ylgnbu", YlGnBu],
	["ylgn", YlGn],
	["ylorbr", YlOrBr],
	["ylorrd", YlOrRd],
	["rainbow", rainbow],
	["sinebow", sinebow]
]);
function quantitativeScheme(scheme) {
	const s = `${scheme}`.toLowerCase();
	if (!quantitativeSchemes.has(s)) throw new Error(`unknown quantitative scheme: ${s}`);
	return quantitativeSchemes.get(s);
}
var divergingSchemes = /* @__PURE__ */ new Set([
	"brbg",
	"prgn",
	"piyg",
	"puor",
	"rdbu",
	"rdgy",
	"rdylbu",
	"rdylgn",
	"spectral",
	"burd",
	"buylrd"
]);
function isDivergingScheme(scheme) {
	return scheme != null && divergingSchemes.has(`${scheme}`.toLowerCase());
}
// node_modules/@observablehq/plot/src/scales/quantitative.js
var flip = (i) => (t) => i(1 - t);
var unit = [0, 1];
var interpolators = /* @__PURE__ */ new Map([
	["number", number$4],
	["rgb", rgb],
	["hsl", hsl_default],
	["hcl", hcl_default],
	["lab", lab]
]);
function maybeInterpolator(interpolate) {
	const i = `${interpolate}`.toLowerCase();
	if (!interpolators.has(i)) throw new Error(`unknown interpolator: ${i}`);
	return interpolators.get(i);
}
function createScaleQ(key, scale, channels, { type, nice, clamp, zero, domain = inferAutoDomain(key, channels), unknown, round: round$1, scheme, interval, range = registry.get(key) === radius ? inferRadialRange(channels, domain) : registry.get(key) === length ? inferLengthRange(channels, domain) : registry.get(key) === opacity ? unit : void 0, interpolate = registry.get(key) === color$1 ? scheme == null && range !== void 0 ? rgb : quantitativeScheme(scheme !== void 0 ? scheme : type === "cyclical" ? "rainbow" : "turbo") : round$1 ? round : number$4, reverse: reverse$2 }) {
	domain = maybeRepeat(domain);
	interval = maybeRangeInterval(interval, type);
	if (type === "cyclical" || type === "sequential") type = "linear";
	if (typeof interpolate !== "function") interpolate = maybeInterpolator(interpolate);
	reverse$2 = !!reverse$2;
	if (range !== void 0) {
		if (domain.length !== (range = maybeRepeat(range)).length) {
			if (interpolate.length === 1) throw new Error("invalid piecewise interpolator");
			interpolate = piecewise(interpolate, range);
			range = void 0;
		}
	}
	if (interpolate.length === 1) {
		if (reverse$2) {
			interpolate = flip(interpolate);
			reverse$2 = false;
		}
		if (range === void 0) {
			range = Float64Array.from(domain, (_, i) => i / (domain.length - 1));
			if (range.length === 2) range = unit;
		}
		scale.interpolate((range === unit ? constant : interpolatePiecewise)(interpolate));
	} else scale.interpolate(interpolate);
	if (zero) {
		const [min, max] = extent$1(domain);
		if (min > 0 || max < 0) {
			domain = slice(domain);
			if ((orderof(domain) || 1) === Math.sign(min)) domain[0] = 0;
			else domain[domain.length - 1] = 0;
		}
	}
	if (reverse$2) domain = reverse(domain);
	scale.domain(domain).unknown(unknown);
	if (nice) scale.nice(maybeNice(nice, type)), domain = scale.domain();
	if (range !== void 0) scale.range(range);
	if (clamp) scale.clamp(clamp);
	return {
		type,
		domain,
		range,
		scale,
		interpolate,
		interval
	};
}
function maybeRepeat(values) {
	values = arrayify(values);
	return values.length >= 2 ? values : [values[0], values[0]];
}
function maybeNice(nice, type) {
	return nice === true ? void 0 : typeof nice === "number" ? nice : maybeNiceInterval(nice, type);
}
function createScaleLinear(key, channels, options) {
	return createScaleQ(key, linear(), channels, options);
}
function createScaleSqrt(key, channels, options) {
	return createScalePow(key, channels, {
		...options,
		exponent: .5
	});
}
function createScalePow(key, channels, { exponent = 1, ...options }) {
	return createScaleQ(key, pow().exponent(exponent), channels, {
		...options,
		type: "pow"
	});
}
function createScaleLog(key, channels, { base = 10, domain = inferLogDomain(channels), ...options }) {
	return createScaleQ(key, log().base(base), channels, {
		...options,
		domain
	});
}
function createScaleSymlog(key, channels, { constant = 1, ...options }) {
	return createScaleQ(key, symlog().constant(constant), channels, options);
}
function createScaleQuantile(key, channels, { range, quantiles = range === void 0 ? 5 : (range = [...range]).length, n = quantiles, scheme = "rdylbu", domain = inferQuantileDomain(channels), unknown, interpolate, reverse }) {
	if (range === void 0) range = interpolate !== void 0 ? quantize(interpolate, n) : registry.get(key) === color$1 ? ordinalRange(scheme, n) : void 0;
	if (domain.length > 0) domain = quantile(domain, range === void 0 ? { length: n } : range).quantiles();
	return createScaleThreshold(key, channels, {
		domain,
		range,
		reverse,
		unknown
	});
}
function createScaleQuantize(key, channels, { range, n = range === void 0 ? 5 : (range = [...range]).length, scheme = "rdylbu", domain = inferAutoDomain(key, channels), unknown, interpolate, reverse }) {
	const [min, max] = extent$1(domain);
	let thresholds;
	if (range === void 0) {
		thresholds = ticks(min, max, n);
		if (thresholds[0] <= min) thresholds.splice(0, 1);
		if (thresholds[thresholds.length - 1] >= max) thresholds.pop();
		n = thresholds.length + 1;
		range = interpolate !== void 0 ? quantize(interpolate, n) : registry.get(key) === color$1 ? ordinalRange(scheme, n) : void 0;
	} else {
		thresholds = quantize(number$4(min, max), n + 1).slice(1, -1);
		if (min instanceof Date) thresholds = thresholds.map((x) => new Date(x));
	}
	if (orderof(arrayify(domain)) < 0) thresholds.reverse();
	return createScaleThreshold(key, channels, {
		domain: thresholds,
		range,
		reverse,
		unknown
	});
}
function createScaleThreshold(key, channels, { domain = [0], unknown, scheme = "rdylbu", interpolate, range = interpolate !== void 0 ? quantize(interpolate, domain.length + 1) : registry.get(key) === color$1 ? ordinalRange(scheme, domain.length + 1) : void 0, reverse: reverse$3 }) {
	domain = arrayify(domain);
	const sign = orderof(domain);
	if (!isNaN(sign) && !isOrdered(domain, sign)) throw new Error(`the ${key} scale has a non-monotonic domain`);
	if (reverse$3) range = reverse(range);
	return {
		type: "threshold",
		scale: threshold(sign < 0 ? reverse(domain) : domain, range === void 0 ? [] : range).unknown(unknown),
		domain,
		range
	};
}
function isOrdered(domain, sign) {
	for (let i = 1, n = domain.length, d = domain[0]; i < n; ++i) {
		const s = descending(d, d = domain[i]);
		if (s !== 0 && s !== sign) return false;
	}
	return true;
}
function createScaleIdentity(key) {
	return {
		type: "identity",
		scale: hasNumericRange(registry.get(key)) ? identity$2() : (d) => d
	};
}
function inferDomain$1(channels, f = finite) {
	return channels.length ? [min$1(channels, ({ value }) => value === void 0 ? value : min$1(value, f)), max(channels, ({ value }) => value === void 0 ? value : max(value, f))] : [0, 1];
}
function inferAutoDomain(key, channels) {
	const type = registry.get(key);
	return (type === radius || type === opacity || type === length ? inferZeroDomain : inferDomain$1)(channels);
}
function inferZeroDomain(channels) {
	return [0, channels.length ? max(channels, ({ value }) => value === void 0 ? value : max(value, finite)) : 1];
}
function inferRadialRange(channels, domain) {
	const hint = channels.find(({ radius }) => radius !== void 0);
	if (hint !== void 0) return [0, hint.radius];
	const h25 = quantile$1(channels, .5, ({ value }) => value === void 0 ? NaN : quantile$1(value, .25, positive));
	const range = domain.map((d) => 3 * Math.sqrt(d / h25));
	const k = 30 / max(range);
	return k < 1 ? range.map((r) => r * k) : range;
}
function inferLengthRange(channels, domain) {
	const h50 = median(channels, ({ value }) => value === void 0 ? NaN : median(value, Math.abs));
	const range = domain.map((d) => 12 * d / h50);
	const k = 60 / max(range);
	return k < 1 ? range.map((r) => r * k) : range;
}
function inferLogDomain(channels) {
	for (const { value } of channels) if (value !== void 0) for (let v of value) {
		if (v > 0) return inferDomain$1(channels, positive);
		if (v < 0) return inferDomain$1(channels, negative);
	}
	return [1, 10];
}
function inferQuantileDomain(channels) {
	const domain = [];
	for (const { value } of channels) {
		if (value === void 0) continue;
		for (const v of value) domain.push(v);
	}
	return domain;
}
function interpolatePiecewise(interpolate) {
	return (i, j) => (t) => interpolate(i + t * (j - i));
}
// node_modules/@observablehq/plot/src/warnings.js
var warnings = 0;
var lastMessage;
function consumeWarnings() {
	const w = warnings;
	warnings = 0;
	lastMessage = void 0;
	return w;
}
function warn(message) {
	if (message === lastMessage) return;
	lastMessage = message;
	console.warn(message);
	++warnings;
}
// node_modules/@observablehq/plot/src/scales/diverging.js
function createScaleD(key, scale, transform, channels, { type, nice, clamp, domain = inferDomain$1(channels), unknown, pivot = 0, scheme, range, symmetric = true, interpolate = registry.get(key) === color$1 ? scheme == null && range !== void 0 ? rgb : quantitativeScheme(scheme !== void 0 ? scheme : "rdbu") : number$4, reverse }) {
	pivot = +pivot;
	domain = arrayify(domain);
	let [min, max] = domain;
	if (domain.length > 2) warn(`Warning: the diverging ${key} scale domain contains extra elements.`);
	if (descending(min, max) < 0) [min, max] = [max, min], reverse = !reverse;
	min = Math.min(min, pivot);
	max = Math.max(max, pivot);
	if (typeof interpolate !== "function") interpolate = maybeInterpolator(interpolate);
	if (range !== void 0) interpolate = interpolate.length === 1 ? interpolatePiecewise(interpolate)(...range) : piecewise(interpolate, range);
	if (reverse) interpolate = flip(interpolate);
	if (symmetric) {
		const mid = transform.apply(pivot);
		const mindelta = mid - transform.apply(min);
		const maxdelta = transform.apply(max) - mid;
		if (mindelta < maxdelta) min = transform.invert(mid - maxdelta);
		else if (mindelta > maxdelta) max = transform.invert(mid + mindelta);
	}
	scale.domain([
		min,
		pivot,
		max
	]).unknown(unknown).interpolator(interpolate);
	if (clamp) scale.clamp(clamp);
	if (nice) scale.nice(nice);
	return {
		type,
		domain: [min, max],
		pivot,
		interpolate,
		scale
	};
}
function createScaleDiverging(key, channels, options) {
	return createScaleD(key, diverging(), transformIdentity, channels, options);
}
function createScaleDivergingSqrt(key, channels, options) {
	return createScaleDivergingPow(key, channels, {
		...options,
		exponent: .5
	});
}
function createScaleDivergingPow(key, channels, { exponent = 1, ...options }) {
	return createScaleD(key, divergingPow().exponent(exponent = +exponent), transformPow(exponent), channels, {
		...options,
		type: "diverging-pow"
	});
}
function createScaleDivergingLog(key, channels, { base = 10, pivot = 1, domain = inferDomain$1(channels, pivot < 0 ? negative : positive), ...options }) {
	return createScaleD(key, divergingLog().base(base = +base), transformLog, channels, {
		domain,
		pivot,
		...options
	});
}
function createScaleDivergingSymlog(key, channels, { constant = 1, ...options }) {
	return createScaleD(key, divergingSymlog().constant(constant = +constant), transformSymlog(constant), channels, options);
}
var transformIdentity = {
	apply(x) {
		return x;
	},
	invert(x) {
		return x;
	}
};
var transformLog = {
	apply: Math.log,
	invert: Math.exp
};
var transformSqrt = {
	apply(x) {
		return Math.sign(x) * Math.sqrt(Math.abs(x));
	},
	invert(x) {
		return Math.sign(x) * (x * x);
	}
};
function transformPow(exponent) {
	return exponent === .5 ? transformSqrt : {
		apply(x) {
			return Math.sign(x) * Math.pow(Math.abs(x), exponent);
		},
		invert(x) {
			return Math.sign(x) * Math.pow(Math.abs(x), 1 / exponent);
		}
	};
}
function transformSymlog(constant) {
	return {
		apply(x) {
			return Math.sign(x) * Math.log1p(Math.abs(x / constant));
		},
		invert(x) {
			return Math.sign(x) * Math.expm1(Math.abs(x)) * constant;
		}
	};
}
// node_modules/@observablehq/plot/src/scales/temporal.js
function createScaleT(key, scale, channels, options) {
	return createScaleQ(key, scale, channels, options);
}
function createScaleTime(key, channels, options) {
	return createScaleT(key, time(), channels, options);
}
function createScaleUtc(key, channels, options) {
	return createScaleT(key, utcTime(), channels, options);
}
// node_modules/@observablehq/plot/src/scales/ordinal.js
var ordinalImplicit = Symbol("ordinal");
function createScaleO(key, scale, channels, { type, interval, domain, range, reverse: reverse$1, hint }) {
	interval = maybeRangeInterval(interval, type);
	if (domain === void 0) domain = inferDomain(channels, interval, key);
	if (type === "categorical" || type === ordinalImplicit) type = "ordinal";
	if (reverse$1) domain = reverse(domain);
	domain = scale.domain(domain).domain();
	if (range !== void 0) {
		if (typeof range === "function") range = range(domain);
		scale.range(range);
	}
	return {
		type,
		domain,
		range,
		scale,
		hint,
		interval
	};
}
function createScaleOrdinal(key, channels, { type, interval, domain, range, scheme, unknown, ...options }) {
	interval = maybeRangeInterval(interval, type);
	if (domain === void 0) domain = inferDomain(channels, interval, key);
	let hint;
	if (registry.get(key) === symbol) {
		hint = inferSymbolHint(channels);
		range = range === void 0 ? inferSymbolRange(hint) : map$1(range, maybeSymbol);
	} else if (registry.get(key) === color$1) {
		if (range === void 0 && (type === "ordinal" || type === ordinalImplicit)) {
			range = maybeBooleanRange(domain, scheme);
			if (range !== void 0) scheme = void 0;
		}
		if (scheme === void 0 && range === void 0) scheme = type === "ordinal" ? "turbo" : "observable10";
		if (scheme !== void 0) {
			if (range !== void 0) {
				const interpolate = quantitativeScheme(scheme);
				const t0 = range[0], d = range[1] - range[0];
				range = ({ length: n }) => quantize((t) => interpolate(t0 + d * t), n);
			} else range = ordinalScheme(scheme);
		}
	}
	if (unknown === implicit) throw new Error(`implicit unknown on ${key} scale is not supported`);
	return createScaleO(key, ordinal().unknown(unknown), channels, {
		...options,
		type,
		domain,
		range,
		hint
	});
}
function createScalePoint(key, channels, { align = .5, padding = .5, ...options }) {
	return maybeRound(point$4().align(align).padding(padding), channels, options, key);
}
function createScaleBand(key, channels, { align = .5, padding = .1, paddingInner = padding, paddingOuter = key === "fx" || key === "fy" ? 0 : padding, ...options }) {
	return maybeRound(band().align(align).paddingInner(paddingInner).paddingOuter(paddingOuter), channels, options, key);
}
function maybeRound(scale, channels, options, key) {
	let { round } = options;
	if (round !== void 0) scale.round(round = !!round);
	scale = createScaleO(key, scale, channels, options);
	scale.round = round;
	return scale;
}
function inferDomain(channels, interval, key) {
	const values = new InternSet();
	for (const { value, domain } of channels) {
		if (domain !== void 0) return domain();
		if (value === void 0) continue;
		for (const v of value) values.add(v);
	}
	if (interval !== void 0) {
		const [min, max] = extent$1(values).map(interval.floor, interval);
		return interval.range(min, interval.offset(max));
	}
	if (values.size > 1e4 && registry.get(key) === position) throw new Error(`implicit ordinal domain of ${key} scale has more than 10,000 values`);
	return sort$1(values, ascendingDefined);
}
function inferHint(channels, key) {
	let value;
	for (const { hint } of channels) {
		const candidate = hint?.[key];
		if (candidate === void 0) continue;
		if (value === void 0) value = candidate;
		else if (value !== candidate) return;
	}
	return value;
}
function inferSymbolHint(channels) {
	return {
		fill: inferHint(channels, "fill"),
		stroke: inferHint(channels, "stroke")
	};
}
function inferSymbolRange(hint) {
	return isNoneish(hint.fill) ? symbolsStroke : symbolsFill;
}
// node_modules/@observablehq/plot/src/scales.js
function createScales(channelsByScale, { label: globalLabel, inset: globalInset = 0, insetTop: globalInsetTop = globalInset, insetRight: globalInsetRight = globalInset, insetBottom: globalInsetBottom = globalInset, insetLeft: globalInsetLeft = globalInset, round, nice, clamp, zero, align, padding, projection, facet: { label: facetLabel = globalLabel } = {}, ...options } = {}) {
	const scales = {};
	for (const [key, channels] of channelsByScale) {
		const scaleOptions = options[key];
		const scale = createScale(key, channels, {
			round: registry.get(key) === position ? round : void 0,
			nice,
			clamp,
			zero,
			align,
			padding,
			projection,
			...scaleOptions
		});
		if (scale) {
			let { label = key === "fx" || key === "fy" ? facetLabel : globalLabel, percent, transform, inset, insetTop = inset !== void 0 ? inset : key === "y" ? globalInsetTop : 0, insetRight = inset !== void 0 ? inset : key === "x" ? globalInsetRight : 0, insetBottom = inset !== void 0 ? inset : key === "y" ? globalInsetBottom : 0, insetLeft = inset !== void 0 ? inset : key === "x" ? globalInsetLeft : 0 } = scaleOptions || {};
			if (transform == null) transform = void 0;
			else if (typeof transform !== "function") throw new Error("invalid scale transform; not a function");
			scale.percent = !!percent;
			scale.label = label === void 0 ? inferScaleLabel(channels, scale) : label;
			scale.transform = transform;
			if (key === "x" || key === "fx") {
				scale.insetLeft = +insetLeft;
				scale.insetRight = +insetRight;
			} else if (key === "y" || key === "fy") {
				scale.insetTop = +insetTop;
				scale.insetBottom = +insetBottom;
			}
			scales[key] = scale;
		}
	}
	return scales;
}
function createScaleFunctions(descriptors) {
	const scales = {};
	const scaleFunctions = { scales };
	for (const [key, descriptor] of Object.entries(descriptors)) {
		const { scale, type, interval, label } = descriptor;
		scales[key] = exposeScale(descriptor);
		scaleFunctions[key] = scale;
		scale.type = type;
		if (interval != null) scale.interval = interval;
		if (label != null) scale.label = label;
	}
	return scaleFunctions;
}
function autoScaleRange(scales, dimensions) {
	const { x, y, fx, fy } = scales;
	const superdimensions = fx || fy ? outerDimensions(dimensions) : dimensions;
	if (fx) autoScaleRangeX(fx, superdimensions);
	if (fy) autoScaleRangeY(fy, superdimensions);
	const subdimensions = fx || fy ? innerDimensions(scales, dimensions) : dimensions;
	if (x) autoScaleRangeX(x, subdimensions);
	if (y) autoScaleRangeY(y, subdimensions);
}
function inferScaleLabel(channels = [], scale) {
	let label;
	for (const { label: l } of channels) {
		if (l === void 0) continue;
		if (label === void 0) label = l;
		else if (label !== l) return;
	}
	if (label === void 0) return;
	if (!isOrdinalScale(scale) && scale.percent) label = `${label} (%)`;
	return {
		inferred: true,
		toString: () => label
	};
}
function inferScaleOrder(scale) {
	return Math.sign(orderof(scale.domain())) * Math.sign(orderof(scale.range()));
}
function outerDimensions(dimensions) {
	const { marginTop, marginRight, marginBottom, marginLeft, width, height, facet: { marginTop: facetMarginTop, marginRight: facetMarginRight, marginBottom: facetMarginBottom, marginLeft: facetMarginLeft } } = dimensions;
	return {
		marginTop: Math.max(marginTop, facetMarginTop),
		marginRight: Math.max(marginRight, facetMarginRight),
		marginBottom: Math.max(marginBottom, facetMarginBottom),
		marginLeft: Math.max(marginLeft, facetMarginLeft),
		width,
		height
	};
}
function innerDimensions({ fx, fy }, dimensions) {
	const { marginTop, marginRight, marginBottom, marginLeft, width, height } = outerDimensions(dimensions);
	return {
		marginTop,
		marginRight,
		marginBottom,
		marginLeft,
		width: fx ? fx.scale.bandwidth() + marginLeft + marginRight : width,
		height: fy ? fy.scale.bandwidth() + marginTop + marginBottom : height,
		facet: {
			width,
			height
		}
	};
}
function autoScaleRangeX(scale, dimensions) {
	if (scale.range === void 0) {
		const { insetLeft, insetRight } = scale;
		const { width, marginLeft = 0, marginRight = 0 } = dimensions;
		const left = marginLeft + insetLeft;
		const right = width - marginRight - insetRight;
		scale.range = [left, Math.max(left, right)];
		if (!isOrdinalScale(scale)) scale.range = piecewiseRange(scale);
		scale.scale.range(scale.range);
	}
	autoScaleRound(scale);
}
function autoScaleRangeY(scale, dimensions) {
	if (scale.range === void 0) {
		const { insetTop, insetBottom } = scale;
		const { height, marginTop = 0, marginBottom = 0 } = dimensions;
		const top = marginTop + insetTop;
		const bottom = height - marginBottom - insetBottom;
		scale.range = [Math.max(top, bottom), top];
		if (!isOrdinalScale(scale)) scale.range = piecewiseRange(scale);
		else scale.range.reverse();
		scale.scale.range(scale.range);
	}
	autoScaleRound(scale);
}
function autoScaleRound(scale) {
	if (scale.round === void 0 && isBandScale(scale) && roundError(scale) <= 30) scale.scale.round(true);
}
function roundError({ scale }) {
	const n = scale.domain().length;
	const [start, stop] = scale.range();
	const paddingInner = scale.paddingInner ? scale.paddingInner() : 1;
	const paddingOuter = scale.paddingOuter ? scale.paddingOuter() : scale.padding();
	const m = n - paddingInner;
	const step = Math.abs(stop - start) / Math.max(1, m + paddingOuter * 2);
	return (step - Math.floor(step)) * m;
}
function piecewiseRange(scale) {
	const length = scale.scale.domain().length + isThresholdScale(scale);
	if (!(length > 2)) return scale.range;
	const [start, end] = scale.range;
	return Array.from({ length }, (_, i) => start + i / (length - 1) * (end - start));
}
function createScale(key, channels = [], options = {}) {
	const type = inferScaleType(key, channels, options);
	if (options.type === void 0 && options.domain === void 0 && options.range === void 0 && options.interval == null && key !== "fx" && key !== "fy" && isOrdinalScale({ type })) {
		const values = channels.map(({ value }) => value).filter((value) => value !== void 0);
		if (values.some(isTemporal)) warn(`Warning: some data associated with the ${key} scale are dates. Dates are typically associated with a "utc" or "time" scale rather than a "${formatScaleType(type)}" scale. If you are using a bar mark, you probably want a rect mark with the interval option instead; if you are using a group transform, you probably want a bin transform instead. If you want to treat this data as ordinal, you can specify the interval of the ${key} scale (e.g., d3.utcDay), or you can suppress this warning by setting the type of the ${key} scale to "${formatScaleType(type)}".`);
		else if (values.some(isTemporalString)) warn(`Warning: some data associated with the ${key} scale are strings that appear to be dates (e.g., YYYY-MM-DD). If these strings represent dates, you should parse them to Date objects. Dates are typically associated with a "utc" or "time" scale rather than a "${formatScaleType(type)}" scale. If you are using a bar mark, you probably want a rect mark with the interval option instead; if you are using a group transform, you probably want a bin transform instead. If you want to treat this data as ordinal, you can suppress this warning by setting the type of the ${key} scale to "${formatScaleType(type)}".`);
		else if (values.some(isNumericString)) warn(`Warning: some data associated with the ${key} scale are strings that appear to be numbers. If these strings represent numbers, you should parse or coerce them to numbers. Numbers are typically associated with a "linear" scale rather than a "${formatScaleType(type)}" scale. If you want to treat this data as ordinal, you can specify the interval of the ${key} scale (e.g., 1 for integers), or you can suppress this warning by setting the type of the ${key} scale to "${formatScaleType(type)}".`);
	}
	options.type = type;
	switch (type) {
		case "diverging":
		case "diverging-sqrt":
		case "diverging-pow":
		case "diverging-log":
		case "diverging-symlog":
		case "cyclical":
		case "sequential":
		case "linear":
		case "sqrt":
		case "threshold":
		case "quantile":
		case "pow":
		case "log":
		case "symlog":
			options = coerceType(channels, options, coerceNumbers);
			break;
		case "identity":
			switch (registry.get(key)) {
				case position:
					options = coerceType(channels, options, coerceNumbers);
					break;
				case symbol: options = coerceType(channels, options, coerceSymbols);
			}
			break;
		case "utc":
		case "time": options = coerceType(channels, options, coerceDates);
	}
	switch (type) {
		case "diverging": return createScaleDiverging(key, channels, options);
		case "diverging-sqrt": return createScaleDivergingSqrt(key, channels, options);
		case "diverging-pow": return createScaleDivergingPow(key, channels, options);
		case "diverging-log": return createScaleDivergingLog(key, channels, options);
		case "diverging-symlog": return createScaleDivergingSymlog(key, channels, options);
		case "categorical":
		case "ordinal":
		case ordinalImplicit: return createScaleOrdinal(key, channels, options);
		case "cyclical":
		case "sequential":
		case "linear": return createScaleLinear(key, channels, options);
		case "sqrt": return createScaleSqrt(key, channels, options);
		case "threshold": return createScaleThreshold(key, channels, options);
		case "quantile": return createScaleQuantile(key, channels, options);
		case "quantize": return createScaleQuantize(key, channels, options);
		case "pow": return createScalePow(key, channels, options);
		case "log": return createScaleLog(key, channels, options);
		case "symlog": return createScaleSymlog(key, channels, options);
		case "utc": return createScaleUtc(key, channels, options);
		case "time": return createScaleTime(key, channels, options);
		case "point": return createScalePoint(key, channels, options);
		case "band": return createScaleBand(key, channels, options);
		case "identity": return createScaleIdentity(key);
		case void 0: return;
		default: throw new Error(`unknown scale type: ${type}`);
	}
}
function formatScaleType(type) {
	return typeof type === "symbol" ? type.description : type;
}
function maybeScaleType(type) {
	return typeof type === "string" ? `${type}`.toLowerCase() : type;
}
var typeProjection = { toString: () => "projection" };
function inferScaleType(key, channels, { type, domain, range, scheme, pivot, projection }) {
	type = maybeScaleType(type);
	if (key === "fx" || key === "fy") return "band";
	if ((key === "x" || key === "y") && projection != null) type = typeProjection;
	for (const channel of channels) {
		const t = maybeScaleType(channel.type);
		if (t === void 0) continue;
		else if (type === void 0) type = t;
		else if (type !== t) throw new Error(`scale incompatible with channel: ${type} !== ${t}`);
	}
	if (type === typeProjection) return;
	if (type !== void 0) return type;
	if (domain === void 0 && !channels.some(({ value }) => value !== void 0)) return;
	const kind = registry.get(key);
	if (kind === radius) return "sqrt";
	if (kind === opacity || kind === length) return "linear";
	if (kind === symbol) return "ordinal";
	const n = (domain ?? range)?.length;
	if (n < 2 || n > 2) return asOrdinalType(kind);
	if (domain !== void 0) {
		if (isOrdinal(domain)) return asOrdinalType(kind);
		if (isTemporal(domain)) return "utc";
	} else {
		const values = channels.map(({ value }) => value).filter((value) => value !== void 0);
		if (values.some(isOrdinal)) return asOrdinalType(kind);
		if (values.some(isTemporal)) return "utc";
	}
	if (kind === color$1) {
		if (pivot != null || isDivergingScheme(scheme)) return "diverging";
		if (isCategoricalScheme(scheme)) return "categorical";
	}
	return "linear";
}
function asOrdinalType(kind) {
	switch (kind) {
		case position: return "point";
		case color$1: return ordinalImplicit;
		default: return "ordinal";
	}
}
function isOrdinalScale({ type }) {
	return type === "ordinal" || type === "point" || type === "band" || type === ordinalImplicit;
}
function isThresholdScale({ type }) {
	return type === "threshold";
}
function isBandScale({ type }) {
	return type === "point" || type === "band";
}
function isCollapsed(scale) {
	if (scale === void 0) return true;
	const domain = scale.domain();
	const value = scale(domain[0]);
	for (let i = 1, n = domain.length; i < n; ++i) if (scale(domain[i]) - value) return false;
	return true;
}
function coerceType(channels, { domain, ...options }, coerceValues) {
	for (const c of channels) if (c.value !== void 0) {
		if (domain === void 0) domain = c.value?.domain;
		c.value = coerceValues(c.value);
	}
	return {
		domain: domain === void 0 ? domain : coerceValues(domain),
		...options
	};
}
function coerceSymbols(values) {
	return map$1(values, maybeSymbol);
}
function exposeScales(scales) {
	return (key) => {
		if (!registry.has(key = `${key}`)) throw new Error(`unknown scale: ${key}`);
		return scales[key];
	};
}
function exposeScale({ scale, type, domain, range, interpolate, interval, transform, percent, pivot }) {
	if (type === "identity") return {
		type: "identity",
		apply: (d) => d,
		invert: (d) => d
	};
	const unknown = scale.unknown ? scale.unknown() : void 0;
	return {
		type,
		domain: slice(domain),
		...range !== void 0 && { range: slice(range) },
		...transform !== void 0 && { transform },
		...percent && { percent },
		...unknown !== void 0 && { unknown },
		...interval !== void 0 && { interval },
		...interpolate !== void 0 && { interpolate },
		...scale.clamp && { clamp: scale.clamp() },
		...pivot !== void 0 && {
			pivot,
			symmetric: false
		},
		...scale.base && { base: scale.base() },
		...scale.exponent && { exponent: scale.exponent() },
		...scale.constant && { constant: scale.constant() },
		...scale.align && {
			align: scale.align(),
			round: scale.round()
		},
		...scale.padding && (scale.paddingInner ? {
			paddingInner: scale.paddingInner(),
			paddingOuter: scale.paddingOuter()
		} : { padding: scale.padding() }),
		...scale.bandwidth && {
			bandwidth: scale.bandwidth(),
			step: scale.step()
		},
		apply: (t) => scale(t),
		...scale.invert && { invert: (t) => scale.invert(t) }
	};
}
// node_modules/@observablehq/plot/src/facet.js
function createFacets(channelsByScale, options) {
	const { fx, fy } = createScales(channelsByScale, options);
	const fxDomain = fx?.scale.domain();
	const fyDomain = fy?.scale.domain();
	return fxDomain && fyDomain ? cross$1(fxDomain, fyDomain).map(([x, y], i) => ({
		x,
		y,
		i
	})) : fxDomain ? fxDomain.map((x, i) => ({
		x,
		i
	})) : fyDomain ? fyDomain.map((y, i) => ({
		y,
		i
	})) : void 0;
}
function recreateFacets(facets, { x: X, y: Y }) {
	X &&= facetIndex(X);
	Y &&= facetIndex(Y);
	return facets.filter(X && Y ? (f) => X.has(f.x) && Y.has(f.y) : X ? (f) => X.has(f.x) : (f) => Y.has(f.y)).sort(X && Y ? (a, b) => X.get(a.x) - X.get(b.x) || Y.get(a.y) - Y.get(b.y) : X ? (a, b) => X.get(a.x) - X.get(b.x) : (a, b) => Y.get(a.y) - Y.get(b.y));
}
function facetGroups(data, { fx, fy }) {
	const I = range(data);
	const FX = fx?.value;
	const FY = fy?.value;
	return fx && fy ? rollup(I, (G) => (G.fx = FX[G[0]], G.fy = FY[G[0]], G), (i) => FX[i], (i) => FY[i]) : fx ? rollup(I, (G) => (G.fx = FX[G[0]], G), (i) => FX[i]) : rollup(I, (G) => (G.fy = FY[G[0]], G), (i) => FY[i]);
}
function facetTranslator(fx, fy, { marginTop, marginLeft }) {
	const x = fx ? ({ x }) => fx(x) - marginLeft : () => 0;
	const y = fy ? ({ y }) => fy(y) - marginTop : () => 0;
	return function(d) {
		if (this.tagName === "svg") {
			this.setAttribute("x", x(d));
			this.setAttribute("y", y(d));
		} else this.setAttribute("transform", `translate(${x(d)},${y(d)})`);
	};
}
function facetExclude(index) {
	const ex = [];
	const e = new Uint32Array(sum(index, (d) => d.length));
	for (const i of index) {
		let n = 0;
		for (const j of index) {
			if (i === j) continue;
			e.set(j, n);
			n += j.length;
		}
		ex.push(e.slice(0, n));
	}
	return ex;
}
var facetAnchors = /* @__PURE__ */ new Map([
	["top", facetAnchorTop],
	["right", facetAnchorRight],
	["bottom", facetAnchorBottom],
	["left", facetAnchorLeft],
	["top-left", and(facetAnchorTop, facetAnchorLeft)],
	["top-right", and(facetAnchorTop, facetAnchorRight)],
	["bottom-left", and(facetAnchorBottom, facetAnchorLeft)],
	["bottom-right", and(facetAnchorBottom, facetAnchorRight)],
	["top-empty", facetAnchorTopEmpty],
	["right-empty", facetAnchorRightEmpty],
	["bottom-empty", facetAnchorBottomEmpty],
	["left-empty", facetAnchorLeftEmpty],
	["empty", facetAnchorEmpty]
]);
function maybeFacetAnchor(facetAnchor) {
	if (facetAnchor == null) return null;
	const anchor = facetAnchors.get(`${facetAnchor}`.toLowerCase());
	if (anchor) return anchor;
	throw new Error(`invalid facet anchor: ${facetAnchor}`);
}
var indexCache = /* @__PURE__ */ new WeakMap();
function facetIndex(V) {
	let I = indexCache.get(V);
	if (!I) indexCache.set(V, I = new InternMap(map$1(V, (v, i) => [v, i])));
	return I;
}
function facetIndexOf(V, v) {
	return facetIndex(V).get(v);
}
function facetFind(facets, x, y) {
	x = keyof(x);
	y = keyof(y);
	return facets.find((f) => Object.is(keyof(f.x), x) && Object.is(keyof(f.y), y));
}
function facetEmpty(facets, x, y) {
	return facetFind(facets, x, y)?.empty;
}
function facetAnchorTop(facets, { y: Y }, { y }) {
	return Y ? facetIndexOf(Y, y) === 0 : true;
}
function facetAnchorBottom(facets, { y: Y }, { y }) {
	return Y ? facetIndexOf(Y, y) === Y.length - 1 : true;
}
function facetAnchorLeft(facets, { x: X }, { x }) {
	return X ? facetIndexOf(X, x) === 0 : true;
}
function facetAnchorRight(facets, { x: X }, { x }) {
	return X ? facetIndexOf(X, x) === X.length - 1 : true;
}
function facetAnchorTopEmpty(facets, { y: Y }, { x, y, empty }) {
	if (empty) return false;
	if (!Y) return;
	const i = facetIndexOf(Y, y);
	if (i > 0) return facetEmpty(facets, x, Y[i - 1]);
}
function facetAnchorBottomEmpty(facets, { y: Y }, { x, y, empty }) {
	if (empty) return false;
	if (!Y) return;
	const i = facetIndexOf(Y, y);
	if (i < Y.length - 1) return facetEmpty(facets, x, Y[i + 1]);
}
function facetAnchorLeftEmpty(facets, { x: X }, { x, y, empty }) {
	if (empty) return false;
	if (!X) return;
	const i = facetIndexOf(X, x);
	if (i > 0) return facetEmpty(facets, X[i - 1], y);
}
function facetAnchorRightEmpty(facets, { x: X }, { x, y, empty }) {
	if (empty) return false;
	if (!X) return;
	const i = facetIndexOf(X, x);
	if (i < X.length - 1) return facetEmpty(facets, X[i + 1], y);
}
function facetAnchorEmpty(facets, channels, { empty }) {
	return empty;
}
function and(a, b) {
	return function() {
		return a.apply(null, arguments) && b.apply(null, arguments);
	};
}
function facetFilter(facets, { channels: { fx, fy }, groups }) {
	return fx && fy ? facets.map(({ x, y }) => groups.get(x)?.get(y) ?? []) : fx ? facets.map(({ x }) => groups.get(x) ?? []) : facets.map(({ y }) => groups.get(y) ?? []);
}
// node_modules/@observablehq/plot/src/projection.js
var pi = Math.PI;
var tau = 2 * pi;
var defaultAspectRatio = .618;
function createProjection({ projection, inset: globalInset = 0, insetTop = globalInset, insetRight = globalInset, insetBottom = globalInset, insetLeft = globalInset } = {}, dimensions) {
	if (projection == null) return;
	if (typeof projection.stream === "function") return projection;
	let options;
	let domain;
	let clip = "frame";
	if (isObject(projection)) {
		let inset;
		({type: projection, domain, inset, insetTop = inset !== void 0 ? inset : insetTop, insetRight = inset !== void 0 ? inset : insetRight, insetBottom = inset !== void 0 ? inset : insetBottom, insetLeft = inset !== void 0 ? inset : insetLeft, clip = clip, ...options} = projection);
		if (projection == null) return;
	}
	if (typeof projection !== "function") ({type: projection} = namedProjection(projection));
	const { width, height, marginLeft, marginRight, marginTop, marginBottom } = dimensions;
	const dx = width - marginLeft - marginRight - insetLeft - insetRight;
	const dy = height - marginTop - marginBottom - insetTop - insetBottom;
	projection = projection?.({
		width: dx,
		height: dy,
		clip,
		...options
	});
	if (projection == null) return;
	clip = maybePostClip(clip, marginLeft, marginTop, width - marginRight, height - marginBottom);
	let tx = marginLeft + insetLeft;
	let ty = marginTop + insetTop;
	let transform$1;
	if (domain != null) {
		const [[x0, y0], [x1, y1]] = index(projection).bounds(domain);
		const k = Math.min(dx / (x1 - x0), dy / (y1 - y0));
		if (k > 0) {
			tx -= (k * (x0 + x1) - dx) / 2;
			ty -= (k * (y0 + y1) - dy) / 2;
			transform$1 = transform({ point(x, y) {
				this.stream.point(x * k + tx, y * k + ty);
			} });
		} else warn(`Warning: the projection could not be fit to the specified domain; using the default scale.`);
	}
	transform$1 ??= tx === 0 && ty === 0 ? identity() : transform({ point(x, y) {
		this.stream.point(x + tx, y + ty);
	} });
	return { stream: (s) => projection.stream(transform$1.stream(clip(s))) };
}
function namedProjection(projection) {
	switch (`${projection}`.toLowerCase()) {
		case "albers-usa": return scaleProjection(albersUsa, .7463, .4673);
		case "albers": return conicProjection(albers, .7463, .4673);
		case "azimuthal-equal-area": return scaleProjection(azimuthalEqualArea, 4, 4);
		case "azimuthal-equidistant": return scaleProjection(azimuthalEquidistant, tau, tau);
		case "conic-conformal": return conicProjection(conicConformal, tau, tau);
		case "conic-equal-area": return conicProjection(conicEqualArea, 6.1702, 2.9781);
		case "conic-equidistant": return conicProjection(conicEquidistant, 7.312, 3.6282);
		case "equal-earth": return scaleProjection(equalEarth, 5.4133, 2.6347);
		case "equirectangular": return scaleProjection(equirectangular, tau, pi);
		case "gnomonic": return scaleProjection(gnomonic, 3.4641, 3.4641);
		case "identity": return { type: identity };
		case "reflect-y": return { type: reflectY };
		case "mercator": return scaleProjection(mercator, tau, tau);
		case "orthographic": return scaleProjection(orthographic, 2, 2);
		case "stereographic": return scaleProjection(stereographic, 2, 2);
		case "transverse-mercator": return scaleProjection(transverseMercator, tau, tau);
		default: throw new Error(`unknown projection type: ${projection}`);
	}
}
function maybePostClip(clip, x1, y1, x2, y2) {
	if (clip === false || clip == null || typeof clip === "number") return (s) => s;
	if (clip === true) clip = "frame";
	switch (`${clip}`.toLowerCase()) {
		case "frame": return clipRectangle(x1, y1, x2, y2);
		default: throw new Error(`unknown projection clip type: ${clip}`);
	}
}
function scaleProjection(createProjection, kx, ky) {
	return {
		type: ({ width, height, rotate, precision = .15, clip }) => {
			const projection = createProjection();
			if (precision != null) projection.precision?.(precision);
			if (rotate != null) projection.rotate?.(rotate);
			if (typeof clip === "number") projection.clipAngle?.(clip);
			if (width != null) {
				projection.scale(Math.min(width / kx, height / ky));
				projection.translate([width / 2, height / 2]);
			}
			return projection;
		},
		aspectRatio: ky / kx
	};
}
function conicProjection(createProjection, kx, ky) {
	const { type, aspectRatio } = scaleProjection(createProjection, kx, ky);
	return {
		type: (options) => {
			const { parallels, domain, width, height } = options;
			const projection = type(options);
			if (parallels != null) {
				projection.parallels(parallels);
				if (domain === void 0 && width != null) projection.fitSize([width, height], { type: "Sphere" });
			}
			return projection;
		},
		aspectRatio
	};
}
var identity = constant({ stream: (stream) => stream });
var reflectY = constant(transform({ point(x, y) {
	this.stream.point(x, -y);
} }));
function project(cx, cy, values, projection) {
	const x = values[cx];
	const y = values[cy];
	const n = x.length;
	const X = values[cx] = new Float64Array(n).fill(NaN);
	const Y = values[cy] = new Float64Array(n).fill(NaN);
	let i;
	const stream = projection.stream({ point(x, y) {
		X[i] = x;
		Y[i] = y;
	} });
	for (i = 0; i < n; ++i) stream.point(x[i], y[i]);
}
function hasProjection({ projection } = {}) {
	if (projection == null) return false;
	if (typeof projection.stream === "function") return true;
	if (isObject(projection)) projection = projection.type;
	return projection != null;
}
function projectionAspectRatio(projection) {
	if (typeof projection?.stream === "function") return defaultAspectRatio;
	if (isObject(projection)) {
		let domain, options;
		({domain, type: projection, ...options} = projection);
		if (domain != null && projection != null) {
			const [[x0, y0], [x1, y1]] = index((typeof projection === "string" ? namedProjection(projection).type : projection)({
				...options,
				width: 100,
				height: 100
			})).bounds(domain);
			const r = (y1 - y0) / (x1 - x0);
			return r && isFinite(r) ? r < .2 ? .2 : r > 5 ? 5 : r : defaultAspectRatio;
		}
	}
	if (projection == null) return;
	if (typeof projection !== "function") {
		const { aspectRatio } = namedProjection(projection);
		if (aspectRatio) return aspectRatio;
	}
	return defaultAspectRatio;
}
function getGeometryChannels(channel) {
	const X = [];
	const Y = [];
	const x = {
		scale: "x",
		value: X
	};
	const y = {
		scale: "y",
		value: Y
	};
	const sink = {
		point(x, y) {
			X.push(x);
			Y.push(y);
		},
		lineStart() {},
		lineEnd() {},
		polygonStart() {},
		polygonEnd() {},
		sphere() {}
	};
	for (const object of channel.value) geoStream(object, sink);
	return [x, y];
}
function xyProjection({ x: X, y: Y }) {
	if (X || Y) {
		X ??= (x) => x;
		Y ??= (y) => y;
		return transform({ point(x, y) {
			this.stream.point(X(x), Y(y));
		} });
	}
}
// node_modules/@observablehq/plot/src/context.js
function createContext(options = {}) {
	const { document = typeof window !== "undefined" ? window.document : void 0, clip } = options;
	return {
		document,
		clip: maybeClip(clip)
	};
}
function create(name, { document }) {
	return select(creator(name).call(document.documentElement));
}
// node_modules/@observablehq/plot/src/memoize.js
var unset = Symbol("unset");
function memoize1(compute) {
	return (compute.length === 1 ? memoize1Arg : memoize1Args)(compute);
}
function memoize1Arg(compute) {
	let cacheValue;
	let cacheKey = unset;
	return (key) => {
		if (!Object.is(cacheKey, key)) {
			cacheKey = key;
			cacheValue = compute(key);
		}
		return cacheValue;
	};
}
function memoize1Args(compute) {
	let cacheValue, cacheKeys;
	return (...keys) => {
		if (cacheKeys?.length !== keys.length || cacheKeys.some((k, i) => !Object.is(k, keys[i]))) {
			cacheKeys = keys;
			cacheValue = compute(...keys);
		}
		return cacheValue;
	};
}
// node_modules/@observablehq/plot/src/format.js
var numberFormat = memoize1((locale) => {
	return new Intl.NumberFormat(locale);
});
memoize1((locale, month) => {
	return new Intl.DateTimeFormat(locale, {
		timeZone: "UTC",
		...month && { month }
	});
});
memoize1((locale, weekday) => {
	return new Intl.DateTimeFormat(locale, {
		timeZone: "UTC",
		...weekday && { weekday }
	});
});
function formatNumber(locale = "en-US") {
	const format = numberFormat(locale);
	return (i) => i != null && !isNaN(i) ? format.format(i) : void 0;
}
function formatIsoDate(date) {
	return format(date, "Invalid Date");
}
function formatAuto(locale = "en-US") {
	const number = formatNumber(locale);
	return (v) => (v instanceof Date ? formatIsoDate : typeof v === "number" ? number : string)(v);
}
var formatDefault = formatAuto();
// node_modules/@observablehq/plot/src/style.js
var offset = (typeof window !== "undefined" ? window.devicePixelRatio > 1 : typeof it === "undefined") ? 0 : .5;
var nextClipId = 0;
function getClipId() {
	return `plot-clip-${++nextClipId}`;
}
function styles(mark, { title, href, ariaLabel: variaLabel, ariaDescription, ariaHidden, target, fill, fillOpacity, stroke, strokeWidth, strokeOpacity, strokeLinejoin, strokeLinecap, strokeMiterlimit, strokeDasharray, strokeDashoffset, opacity, mixBlendMode, imageFilter, paintOrder, pointerEvents, shapeRendering, channels }, { ariaLabel: cariaLabel, fill: defaultFill = "currentColor", fillOpacity: defaultFillOpacity, stroke: defaultStroke = "none", strokeOpacity: defaultStrokeOpacity, strokeWidth: defaultStrokeWidth, strokeLinecap: defaultStrokeLinecap, strokeLinejoin: defaultStrokeLinejoin, strokeMiterlimit: defaultStrokeMiterlimit, paintOrder: defaultPaintOrder }) {
	if (defaultFill === null) {
		fill = null;
		fillOpacity = null;
	}
	if (defaultStroke === null) {
		stroke = null;
		strokeOpacity = null;
	}
	if (isNoneish(defaultFill)) {
		if (!isNoneish(defaultStroke) && (!isNoneish(fill) || channels?.fill)) defaultStroke = "none";
	} else if (isNoneish(defaultStroke) && (!isNoneish(stroke) || channels?.stroke)) defaultFill = "none";
	const [vfill, cfill] = maybeColorChannel(fill, defaultFill);
	const [vfillOpacity, cfillOpacity] = maybeNumberChannel(fillOpacity, defaultFillOpacity);
	const [vstroke, cstroke] = maybeColorChannel(stroke, defaultStroke);
	const [vstrokeOpacity, cstrokeOpacity] = maybeNumberChannel(strokeOpacity, defaultStrokeOpacity);
	const [vopacity, copacity] = maybeNumberChannel(opacity);
	if (!isNone(cstroke)) {
		if (strokeWidth === void 0) strokeWidth = defaultStrokeWidth;
		if (strokeLinecap === void 0) strokeLinecap = defaultStrokeLinecap;
		if (strokeLinejoin === void 0) strokeLinejoin = defaultStrokeLinejoin;
		if (strokeMiterlimit === void 0 && !isRound(strokeLinejoin)) strokeMiterlimit = defaultStrokeMiterlimit;
		if (!isNone(cfill) && paintOrder === void 0) paintOrder = defaultPaintOrder;
	}
	const [vstrokeWidth, cstrokeWidth] = maybeNumberChannel(strokeWidth);
	if (defaultFill !== null) {
		mark.fill = impliedString(cfill, "currentColor");
		mark.fillOpacity = impliedNumber(cfillOpacity, 1);
	}
	if (defaultStroke !== null) {
		mark.stroke = impliedString(cstroke, "none");
		mark.strokeWidth = impliedNumber(cstrokeWidth, 1);
		mark.strokeOpacity = impliedNumber(cstrokeOpacity, 1);
		mark.strokeLinejoin = impliedString(strokeLinejoin, "miter");
		mark.strokeLinecap = impliedString(strokeLinecap, "butt");
		mark.strokeMiterlimit = impliedNumber(strokeMiterlimit, 4);
		mark.strokeDasharray = impliedString(strokeDasharray, "none");
		mark.strokeDashoffset = impliedString(strokeDashoffset, "0");
	}
	mark.target = string(target);
	mark.ariaLabel = string(cariaLabel);
	mark.ariaDescription = string(ariaDescription);
	mark.ariaHidden = string(ariaHidden);
	mark.opacity = impliedNumber(copacity, 1);
	mark.mixBlendMode = impliedString(mixBlendMode, "normal");
	mark.imageFilter = impliedString(imageFilter, "none");
	mark.paintOrder = impliedString(paintOrder, "normal");
	mark.pointerEvents = impliedString(pointerEvents, "auto");
	mark.shapeRendering = impliedString(shapeRendering, "auto");
	return {
		title: {
			value: title,
			optional: true,
			filter: null
		},
		href: {
			value: href,
			optional: true,
			filter: null
		},
		ariaLabel: {
			value: variaLabel,
			optional: true,
			filter: null
		},
		fill: {
			value: vfill,
			scale: "auto",
			optional: true
		},
		fillOpacity: {
			value: vfillOpacity,
			scale: "auto",
			optional: true
		},
		stroke: {
			value: vstroke,
			scale: "auto",
			optional: true
		},
		strokeOpacity: {
			value: vstrokeOpacity,
			scale: "auto",
			optional: true
		},
		strokeWidth: {
			value: vstrokeWidth,
			optional: true
		},
		opacity: {
			value: vopacity,
			scale: "auto",
			optional: true
		}
	};
}
function applyTitle(selection, L) {
	if (L) selection.filter((i) => nonempty(L[i])).append("title").call(applyText, L);
}
function applyTitleGroup(selection, L) {
	if (L) selection.filter(([i]) => nonempty(L[i])).append("title").call(applyTextGroup, L);
}
function applyText(selection, T) {
	if (T) selection.text((i) => formatDefault(T[i]));
}
function applyTextGroup(selection, T) {
	if (T) selection.text(([i]) => formatDefault(T[i]));
}
function applyChannelStyles(selection, { target, tip }, { ariaLabel: AL, title: T, fill: F, fillOpacity: FO, stroke: S, strokeOpacity: SO, strokeWidth: SW, opacity: O, href: H }) {
	if (AL) applyAttr(selection, "aria-label", (i) => AL[i]);
	if (F) applyAttr(selection, "fill", (i) => F[i]);
	if (FO) applyAttr(selection, "fill-opacity", (i) => FO[i]);
	if (S) applyAttr(selection, "stroke", (i) => S[i]);
	if (SO) applyAttr(selection, "stroke-opacity", (i) => SO[i]);
	if (SW) applyAttr(selection, "stroke-width", (i) => SW[i]);
	if (O) applyAttr(selection, "opacity", (i) => O[i]);
	if (H) applyHref(selection, (i) => H[i], target);
	if (!tip) applyTitle(selection, T);
}
function applyGroupedChannelStyles(selection, { target, tip }, { ariaLabel: AL, title: T, fill: F, fillOpacity: FO, stroke: S, strokeOpacity: SO, strokeWidth: SW, opacity: O, href: H }) {
	if (AL) applyAttr(selection, "aria-label", ([i]) => AL[i]);
	if (F) applyAttr(selection, "fill", ([i]) => F[i]);
	if (FO) applyAttr(selection, "fill-opacity", ([i]) => FO[i]);
	if (S) applyAttr(selection, "stroke", ([i]) => S[i]);
	if (SO) applyAttr(selection, "stroke-opacity", ([i]) => SO[i]);
	if (SW) applyAttr(selection, "stroke-width", ([i]) => SW[i]);
	if (O) applyAttr(selection, "opacity", ([i]) => O[i]);
	if (H) applyHref(selection, ([i]) => H[i], target);
	if (!tip) applyTitleGroup(selection, T);
}
function groupAesthetics({ ariaLabel: AL, title: T, fill: F, fillOpacity: FO, stroke: S, strokeOpacity: SO, strokeWidth: SW, opacity: O, href: H }, { tip }) {
	return [
		AL,
		tip ? void 0 : T,
		F,
		FO,
		S,
		SO,
		SW,
		O,
		H
	].filter((c) => c !== void 0);
}
function groupZ(I, Z, z) {
	const G = group(I, (i) => Z[i]);
	if (z === void 0 && G.size > 1 + I.length >> 1) warn(`Warning: the implicit z channel has high cardinality. This may occur when the fill or stroke channel is associated with quantitative data rather than ordinal or categorical data. You can suppress this warning by setting the z option explicitly; if this data represents a single series, set z to null.`);
	return G.values();
}
function* groupIndex(I, position, mark, channels) {
	const { z } = mark;
	const { z: Z } = channels;
	const A = groupAesthetics(channels, mark);
	const C = [...position, ...A];
	for (const G of Z ? groupZ(I, Z, z) : [I]) {
		let Ag;
		let Gg;
		out: for (const i of G) {
			for (const c of C) if (!defined(c[i])) {
				if (Gg) Gg.push(-1);
				continue out;
			}
			if (Ag === void 0) {
				if (Gg) yield Gg;
				Ag = A.map((c) => keyof(c[i])), Gg = [i];
				continue;
			}
			Gg.push(i);
			for (let j = 0; j < A.length; ++j) if (keyof(A[j][i]) !== Ag[j]) {
				yield Gg;
				Ag = A.map((c) => keyof(c[i])), Gg = [i];
				continue out;
			}
		}
		if (Gg) yield Gg;
	}
}
function applyClip(selection, mark, dimensions, context) {
	let clipUrl;
	const { clip = context.clip } = mark;
	if (clip === "frame") {
		selection = create("svg:g", context).each(function() {
			this.appendChild(selection.node());
			selection.node = () => this;
		});
		clipUrl = getFrameClip(context, dimensions);
	} else if (clip) clipUrl = getGeoClip(clip, context);
	applyAttr(selection, "aria-label", mark.ariaLabel);
	applyAttr(selection, "aria-description", mark.ariaDescription);
	applyAttr(selection, "aria-hidden", mark.ariaHidden);
	applyAttr(selection, "clip-path", clipUrl);
}
function memoizeClip(clip) {
	const cache = /* @__PURE__ */ new WeakMap();
	return (context, dimensions) => {
		let url = cache.get(context);
		if (!url) {
			const id = getClipId();
			select(context.ownerSVGElement).append("clipPath").attr("id", id).call(clip, context, dimensions);
			cache.set(context, url = `url(#${id})`);
		}
		return url;
	};
}
var getFrameClip = memoizeClip((clipPath, context, dimensions) => {
	const { width, height, marginLeft, marginRight, marginTop, marginBottom } = dimensions;
	clipPath.append("rect").attr("x", marginLeft).attr("y", marginTop).attr("width", width - marginRight - marginLeft).attr("height", height - marginTop - marginBottom);
});
var geoClipCache = /* @__PURE__ */ new WeakMap();
var sphere = { type: "Sphere" };
function getGeoClip(geo, context) {
	let cache, url;
	if (!(cache = geoClipCache.get(context))) geoClipCache.set(context, cache = /* @__PURE__ */ new WeakMap());
	if (geo.type === "Sphere") geo = sphere;
	if (!(url = cache.get(geo))) {
		const id = getClipId();
		select(context.ownerSVGElement).append("clipPath").attr("id", id).append("path").attr("d", context.path()(geo));
		cache.set(geo, url = `url(#${id})`);
	}
	return url;
}
function applyIndirectStyles(selection, mark, dimensions, context) {
	applyClip(selection, mark, dimensions, context);
	applyAttr(selection, "class", mark.className);
	applyAttr(selection, "fill", mark.fill);
	applyAttr(selection, "fill-opacity", mark.fillOpacity);
	applyAttr(selection, "stroke", mark.stroke);
	applyAttr(selection, "stroke-width", mark.strokeWidth);
	applyAttr(selection, "stroke-opacity", mark.strokeOpacity);
	applyAttr(selection, "stroke-linejoin", mark.strokeLinejoin);
	applyAttr(selection, "stroke-linecap", mark.strokeLinecap);
	applyAttr(selection, "stroke-miterlimit", mark.strokeMiterlimit);
	applyAttr(selection, "stroke-dasharray", mark.strokeDasharray);
	applyAttr(selection, "stroke-dashoffset", mark.strokeDashoffset);
	applyAttr(selection, "shape-rendering", mark.shapeRendering);
	applyAttr(selection, "filter", mark.imageFilter);
	applyAttr(selection, "paint-order", mark.paintOrder);
	const { pointerEvents = context.pointerSticky === false ? "none" : void 0 } = mark;
	applyAttr(selection, "pointer-events", pointerEvents);
}
function applyDirectStyles(selection, mark) {
	applyStyle(selection, "mix-blend-mode", mark.mixBlendMode);
	applyAttr(selection, "opacity", mark.opacity);
}
function applyHref(selection, href, target) {
	selection.each(function(i) {
		const h = href(i);
		if (h != null) {
			const a = this.ownerDocument.createElementNS(namespaces.svg, "a");
			a.setAttribute("fill", "inherit");
			a.setAttributeNS(namespaces.xlink, "href", h);
			if (target != null) a.setAttribute("target", target);
			this.parentNode.insertBefore(a, this).appendChild(this);
		}
	});
}
function applyAttr(selection, name, value) {
	if (value != null) selection.attr(name, value);
}
function applyStyle(selection, name, value) {
	if (value != null) selection.style(name, value);
}
function applyTransform(selection, mark, { x, y }, tx = offset, ty = offset) {
	tx += mark.dx;
	ty += mark.dy;
	if (x?.bandwidth) tx += x.bandwidth() / 2;
	if (y?.bandwidth) ty += y.bandwidth() / 2;
	if (tx || ty) selection.attr("transform", `translate(${tx},${ty})`);
}
function impliedString(value, impliedValue) {
	if ((value = string(value)) !== impliedValue) return value;
}
function impliedNumber(value, impliedValue) {
	if ((value = number$2(value)) !== impliedValue) return value;
}
var validClassName = /^-?([_a-z]|[\240-\377]|\\[0-9a-f]{1,6}(\r\n|[ \t\r\n\f])?|\\[^\r\n\f0-9a-f])([_a-z0-9-]|[\240-\377]|\\[0-9a-f]{1,6}(\r\n|[ \t\r\n\f])?|\\[^\r\n\f0-9a-f])*$/i;
function maybeClassName(name) {
	if (name === void 0) return "plot-d6a7b5";
	name = `${name}`;
	if (!validClassName.test(name)) throw new Error(`invalid class name: ${name}`);
	return name;
}
function applyInlineStyles(selection, style) {
	if (typeof style === "string") selection.property("style", style);
	else if (style != null) for (const element of selection) Object.assign(element.style, style);
}
function applyFrameAnchor({ frameAnchor }, { width, height, marginTop, marginRight, marginBottom, marginLeft }) {
	return [/left$/.test(frameAnchor) ? marginLeft : /right$/.test(frameAnchor) ? width - marginRight : (marginLeft + width - marginRight) / 2, /^top/.test(frameAnchor) ? marginTop : /^bottom/.test(frameAnchor) ? height - marginBottom : (marginTop + height - marginBottom) / 2];
}
// node_modules/@observablehq/plot/src/mark.js
var Mark = class {
	constructor(data, channels = {}, options = {}, defaults) {
		const { facet = "auto", facetAnchor, fx, fy, sort, dx = 0, dy = 0, margin = 0, marginTop = margin, marginRight = margin, marginBottom = margin, marginLeft = margin, className, clip = defaults?.clip, channels: extraChannels, tip, render } = options;
		this.data = data;
		this.sort = isDomainSort(sort) ? sort : null;
		this.initializer = initializer(options).initializer;
		this.transform = this.initializer ? options.transform : basic(options).transform;
		if (facet === null || facet === false) this.facet = null;
		else {
			this.facet = keyword(facet === true ? "include" : facet, "facet", [
				"auto",
				"include",
				"exclude",
				"super"
			]);
			this.fx = data === singleton && typeof fx === "string" ? [fx] : fx;
			this.fy = data === singleton && typeof fy === "string" ? [fy] : fy;
		}
		this.facetAnchor = maybeFacetAnchor(facetAnchor);
		channels = maybeNamed(channels);
		if (extraChannels !== void 0) channels = {
			...maybeChannels(extraChannels),
			...channels
		};
		if (defaults !== void 0) channels = {
			...styles(this, options, defaults),
			...channels
		};
		this.channels = Object.fromEntries(Object.entries(channels).map(([name, channel]) => {
			if (isOptions(channel.value)) {
				const { value, label = channel.label, scale = channel.scale } = channel.value;
				channel = {
					...channel,
					label,
					scale,
					value
				};
			}
			if (data === singleton && typeof channel.value === "string") {
				const { value } = channel;
				channel = {
					...channel,
					value: [value]
				};
			}
			return [name, channel];
		}).filter(([name, { value, optional }]) => {
			if (value != null) return true;
			if (optional) return false;
			throw new Error(`missing channel value: ${name}`);
		}));
		this.dx = +dx;
		this.dy = +dy;
		this.marginTop = +marginTop;
		this.marginRight = +marginRight;
		this.marginBottom = +marginBottom;
		this.marginLeft = +marginLeft;
		this.clip = maybeClip(clip);
		this.tip = maybeTip(tip);
		this.className = string(className);
		if (this.facet === "super") {
			if (fx || fy) throw new Error(`super-faceting cannot use fx or fy`);
			for (const name in this.channels) {
				const { scale } = channels[name];
				if (scale !== "x" && scale !== "y") continue;
				throw new Error(`super-faceting cannot use x or y`);
			}
		}
		if (render != null) this.render = composeRender(render, this.render);
	}
	initialize(facets, facetChannels, plotOptions) {
		let data = dataify(this.data);
		if (facets === void 0 && data != null) facets = [range(data)];
		const originalFacets = facets;
		if (this.transform != null) ({facets, data} = this.transform(data, facets, plotOptions)), data = dataify(data);
		if (facets !== void 0) facets.original = originalFacets;
		const channels = createChannels(this.channels, data);
		if (this.sort != null) channelDomain(data, facets, channels, facetChannels, this.sort);
		return {
			data,
			facets,
			channels
		};
	}
	filter(index, channels, values) {
		for (const name in channels) {
			const { filter = defined } = channels[name];
			if (filter !== null) {
				const value = values[name];
				index = index.filter((i) => filter(value[i]));
			}
		}
		return index;
	}
	project(channels, values, context) {
		for (const cx in channels) if (channels[cx].scale === "x" && /^x|x$/.test(cx)) {
			const cy = cx.replace(/^x|x$/, "y");
			if (cy in channels && channels[cy].scale === "y") project(cx, cy, values, context.projection);
		}
	}
	scale(channels, scales, context) {
		const values = valueObject(channels, scales);
		if (context.projection) this.project(channels, values, context);
		return values;
	}
};
function marks(...marks) {
	marks.plot = Mark.prototype.plot;
	return marks;
}
function composeRender(r1, r2) {
	if (r1 == null) return r2 === null ? void 0 : r2;
	if (r2 == null) return r1 === null ? void 0 : r1;
	if (typeof r1 !== "function") throw new TypeError(`invalid render transform: ${r1}`);
	if (typeof r2 !== "function") throw new TypeError(`invalid render transform: ${r2}`);
	return function(i, s, v, d, c, next) {
		return r1.call(this, i, s, v, d, c, (i, s, v, d, c) => {
			return r2.call(this, i, s, v, d, c, next);
		});
	};
}
function maybeChannels(channels) {
	return Object.fromEntries(Object.entries(maybeNamed(channels)).map(([name, channel]) => {
		channel = typeof channel === "string" ? {
			value: channel,
			label: name
		} : maybeValue(channel);
		if (channel.filter === void 0 && channel.scale == null) channel = {
			...channel,
			filter: null
		};
		return [name, channel];
	}));
}
function maybeTip(tip) {
	return tip === true ? "xy" : tip === false || tip == null ? null : typeof tip === "string" ? keyword(tip, "tip", [
		"x",
		"y",
		"xy"
	]) : tip;
}
function withTip(options, pointer) {
	return options?.tip === true ? {
		...options,
		tip: pointer
	} : isObject(options?.tip) && options.tip.pointer === void 0 ? {
		...options,
		tip: {
			...options.tip,
			pointer
		}
	} : options;
}
// node_modules/@observablehq/plot/src/dimensions.js
function createDimensions(scales, marks, options = {}) {
	let marginTopDefault = .5 - offset, marginRightDefault = .5 + offset, marginBottomDefault = .5 + offset, marginLeftDefault = .5 - offset;
	for (const { marginTop, marginRight, marginBottom, marginLeft } of marks) {
		if (marginTop > marginTopDefault) marginTopDefault = marginTop;
		if (marginRight > marginRightDefault) marginRightDefault = marginRight;
		if (marginBottom > marginBottomDefault) marginBottomDefault = marginBottom;
		if (marginLeft > marginLeftDefault) marginLeftDefault = marginLeft;
	}
	let { margin, marginTop = margin !== void 0 ? margin : marginTopDefault, marginRight = margin !== void 0 ? margin : marginRightDefault, marginBottom = margin !== void 0 ? margin : marginBottomDefault, marginLeft = margin !== void 0 ? margin : marginLeftDefault } = options;
	marginTop = +marginTop;
	marginRight = +marginRight;
	marginBottom = +marginBottom;
	marginLeft = +marginLeft;
	let { width = 640, height = autoHeight(scales, options, {
		width,
		marginTopDefault,
		marginRightDefault,
		marginBottomDefault,
		marginLeftDefault
	}) + Math.max(0, marginTop - marginTopDefault + marginBottom - marginBottomDefault) } = options;
	width = +width;
	height = +height;
	const dimensions = {
		width,
		height,
		marginTop,
		marginRight,
		marginBottom,
		marginLeft
	};
	if (scales.fx || scales.fy) {
		let { margin: facetMargin, marginTop: facetMarginTop = facetMargin !== void 0 ? facetMargin : marginTop, marginRight: facetMarginRight = facetMargin !== void 0 ? facetMargin : marginRight, marginBottom: facetMarginBottom = facetMargin !== void 0 ? facetMargin : marginBottom, marginLeft: facetMarginLeft = facetMargin !== void 0 ? facetMargin : marginLeft } = options.facet ?? {};
		facetMarginTop = +facetMarginTop;
		facetMarginRight = +facetMarginRight;
		facetMarginBottom = +facetMarginBottom;
		facetMarginLeft = +facetMarginLeft;
		dimensions.facet = {
			marginTop: facetMarginTop,
			marginRight: facetMarginRight,
			marginBottom: facetMarginBottom,
			marginLeft: facetMarginLeft
		};
	}
	return dimensions;
}
function autoHeight({ x, y, fy, fx }, { projection, aspectRatio }, { width, marginTopDefault, marginRightDefault, marginBottomDefault, marginLeftDefault }) {
	const nfy = fy ? fy.scale.domain().length || 1 : 1;
	const ar = projectionAspectRatio(projection);
	if (ar) {
		const nfx = fx ? fx.scale.domain().length : 1;
		const far = (1.1 * nfy - .1) / (1.1 * nfx - .1) * ar;
		const lar = Math.max(.1, Math.min(10, far));
		return Math.round((width - marginLeftDefault - marginRightDefault) * lar + marginTopDefault + marginBottomDefault);
	}
	const ny = y ? isOrdinalScale(y) ? y.scale.domain().length || 1 : Math.max(7, 17 / nfy) : 1;
	if (aspectRatio != null) {
		aspectRatio = +aspectRatio;
		if (!(isFinite(aspectRatio) && aspectRatio > 0)) throw new Error(`invalid aspectRatio: ${aspectRatio}`);
		const ratio = aspectRatioLength("y", y) / (aspectRatioLength("x", x) * aspectRatio);
		const fxb = fx ? fx.scale.bandwidth() : 1;
		const fyb = fy ? fy.scale.bandwidth() : 1;
		return (ratio * (fxb * (width - marginLeftDefault - marginRightDefault) - x.insetLeft - x.insetRight) + y.insetTop + y.insetBottom) / fyb + marginTopDefault + marginBottomDefault;
	}
	return !!(y || fy) * Math.max(1, Math.min(60, ny * nfy)) * 20 + !!fx * 30 + 60;
}
function aspectRatioLength(k, scale) {
	if (!scale) throw new Error(`aspectRatio requires ${k} scale`);
	const { type, domain } = scale;
	let transform;
	switch (type) {
		case "linear":
		case "utc":
		case "time":
			transform = Number;
			break;
		case "pow": {
			const exponent = scale.scale.exponent();
			transform = (x) => Math.pow(x, exponent);
			break;
		}
		case "log":
			transform = Math.log;
			break;
		case "point":
		case "band": return domain.length;
		default: throw new Error(`unsupported ${k} scale for aspectRatio: ${type}`);
	}
	const [min, max] = extent$1(domain);
	return Math.abs(transform(max) - transform(min));
}
// node_modules/@observablehq/plot/src/interactions/pointer.js
var states = /* @__PURE__ */ new WeakMap();
function pointerK(kx, ky, { x, y, px, py, maxRadius = 40, channels, render, ...options } = {}) {
	maxRadius = +maxRadius;
	if (px != null) x ??= null, channels = {
		...channels,
		px: {
			value: px,
			scale: "x"
		}
	};
	if (py != null) y ??= null, channels = {
		...channels,
		py: {
			value: py,
			scale: "y"
		}
	};
	return {
		x,
		y,
		channels,
		...options,
		render: composeRender(function(index, scales, values, dimensions, context, next) {
			context = {
				...context,
				pointerSticky: false
			};
			const svg = context.ownerSVGElement;
			const { data } = context.getMarkState(this);
			let state = states.get(svg);
			if (!state) states.set(svg, state = {
				sticky: false,
				roots: [],
				renders: []
			});
			let renderIndex = state.renders.push(render) - 1;
			const { x, y, fx, fy } = scales;
			let tx = fx ? fx(index.fx) - dimensions.marginLeft : 0;
			let ty = fy ? fy(index.fy) - dimensions.marginTop : 0;
			if (x?.bandwidth) tx += x.bandwidth() / 2;
			if (y?.bandwidth) ty += y.bandwidth() / 2;
			const faceted = index.fi != null;
			let facetState;
			if (faceted) {
				let facetStates = state.facetStates;
				if (!facetStates) state.facetStates = facetStates = /* @__PURE__ */ new Map();
				facetState = facetStates.get(this);
				if (!facetState) facetStates.set(this, facetState = /* @__PURE__ */ new Map());
			}
			const [cx, cy] = applyFrameAnchor(this, dimensions);
			const { px: PX, py: PY } = values;
			const px = PX ? (i) => PX[i] : anchorX$1(values, cx);
			const py = PY ? (i) => PY[i] : anchorY$1(values, cy);
			let i;
			let g;
			let s;
			let f;
			function update(ii, ri) {
				if (faceted) {
					if (f) f = cancelAnimationFrame(f);
					if (ii == null) facetState.delete(index.fi);
					else {
						facetState.set(index.fi, ri);
						f = requestAnimationFrame(() => {
							f = null;
							for (const [fi, r] of facetState) if (r < ri || r === ri && fi < index.fi) {
								ii = null;
								break;
							}
							render(ii);
						});
						return;
					}
				}
				render(ii);
			}
			function render(ii) {
				if (i === ii && s === state.sticky) return;
				i = ii;
				s = context.pointerSticky = state.sticky;
				const I = i == null ? [] : [i];
				if (faceted) I.fx = index.fx, I.fy = index.fy, I.fi = index.fi;
				const r = next(I, scales, values, dimensions, context);
				if (g) {
					if (faceted) {
						const p = g.parentNode;
						const ft = g.getAttribute("transform");
						const mt = r.getAttribute("transform");
						ft ? r.setAttribute("transform", ft) : r.removeAttribute("transform");
						mt ? p.setAttribute("transform", mt) : p.removeAttribute("transform");
						r.removeAttribute("aria-label");
						r.removeAttribute("aria-description");
						r.removeAttribute("aria-hidden");
					}
					g.replaceWith(r);
				}
				state.roots[renderIndex] = g = r;
				if (!(i == null && facetState?.size > 1)) {
					const value = i == null ? null : isArray(data) ? data[i] : data.get(i);
					context.dispatchValue(value);
				}
				return r;
			}
			function pointermove(event) {
				if (state.sticky || event.pointerType === "mouse" && event.buttons === 1) return;
				let [xp, yp] = pointer$1(event);
				xp -= tx, yp -= ty;
				const kpx = xp < dimensions.marginLeft || xp > dimensions.width - dimensions.marginRight ? 1 : kx;
				const kpy = yp < dimensions.marginTop || yp > dimensions.height - dimensions.marginBottom ? 1 : ky;
				let ii = null;
				let ri = maxRadius * maxRadius;
				for (const j of index) {
					const dx = kpx * (px(j) - xp);
					const dy = kpy * (py(j) - yp);
					const rj = dx * dx + dy * dy;
					if (rj <= ri) ii = j, ri = rj;
				}
				if (ii != null && (kx !== 1 || ky !== 1)) {
					const dx = px(ii) - xp;
					const dy = py(ii) - yp;
					ri = dx * dx + dy * dy;
				}
				update(ii, ri);
			}
			function pointerdown(event) {
				if (event.pointerType !== "mouse") return;
				if (i == null) return;
				if (state.sticky && state.roots.some((r) => r?.contains(event.target))) return;
				if (state.sticky) state.sticky = false, state.renders.forEach((r) => r(null));
				else state.sticky = true, render(i);
				event.stopImmediatePropagation();
			}
			function pointerleave(event) {
				if (event.pointerType !== "mouse") return;
				if (!state.sticky) update(null);
			}
			svg.addEventListener("pointerenter", pointermove);
			svg.addEventListener("pointermove", pointermove);
			svg.addEventListener("pointerdown", pointerdown);
			svg.addEventListener("pointerleave", pointerleave);
			return render(null);
		}, render)
	};
}
function pointer(options) {
	return pointerK(1, 1, options);
}
function pointerX(options) {
	return pointerK(1, .01, options);
}
function pointerY(options) {
	return pointerK(.01, 1, options);
}
function anchorX$1({ x1: X1, x2: X2, x: X = X1 }, cx) {
	return X1 && X2 ? (i) => (X1[i] + X2[i]) / 2 : X ? (i) => X[i] : () => cx;
}
function anchorY$1({ y1: Y1, y2: Y2, y: Y = Y1 }, cy) {
	return Y1 && Y2 ? (i) => (Y1[i] + Y2[i]) / 2 : Y ? (i) => Y[i] : () => cy;
}
// node_modules/@observablehq/plot/src/axes.js
function inferFontVariant$2(scale) {
	return isOrdinalScale(scale) && scale.interval === void 0 ? void 0 : "tabular-nums";
}
// node_modules/@observablehq/plot/src/legends/ramp.js
function legendRamp(color, options) {
	let { label = color.label, tickSize = 6, width = 240, height = 44 + tickSize, marginTop = 18, marginRight = 0, marginBottom = 16 + tickSize, marginLeft = 0, style, ticks = (width - marginLeft - marginRight) / 64, tickFormat, fontVariant = inferFontVariant$2(color), round = true, opacity, className } = options;
	const context = createContext(options);
	className = maybeClassName(className);
	opacity = maybeNumberChannel(opacity)[1];
	if (tickFormat === null) tickFormat = () => null;
	const svg = create("svg", context).attr("class", `${className}-ramp`).attr("font-family", "system-ui, sans-serif").attr("font-size", 10).attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`).call((svg) => svg.append("style").text(`:where(.${className}-ramp) {
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
  overflow: visible;
}
:where(.${className}-ramp text) {
  white-space: pre;
}`)).call(applyInlineStyles, style);
	let tickAdjust = (g) => g.selectAll(".tick line").attr("y1", marginTop + marginBottom - height);
	let x;
	const applyRange = round ? (x, range) => x.rangeRound(range) : (x, range) => x.range(range);
	const { type, domain, range, interpolate, scale, pivot } = color;
	if (interpolate) {
		const interpolator = range === void 0 ? interpolate : piecewise(interpolate.length === 1 ? interpolatePiecewise(interpolate) : interpolate, range);
		x = applyRange(scale.copy(), quantize(number$4(marginLeft, width - marginRight), Math.min(domain.length + (pivot !== void 0), range === void 0 ? Infinity : range.length)));
		const n = 256;
		const canvas = context.document.createElement("canvas");
		canvas.width = n;
		canvas.height = 1;
		const context2 = canvas.getContext("2d");
		for (let i = 0, j = 255; i < n; ++i) {
			context2.fillStyle = interpolator(i / j);
			context2.fillRect(i, 0, 1, 1);
		}
		svg.append("image").attr("opacity", opacity).attr("x", marginLeft).attr("y", marginTop).attr("width", width - marginLeft - marginRight).attr("height", height - marginTop - marginBottom).attr("preserveAspectRatio", "none").attr("xlink:href", canvas.toDataURL());
	} else if (type === "threshold") {
		const thresholds = domain;
		const thresholdFormat = tickFormat === void 0 ? (d) => d : typeof tickFormat === "string" ? format$1(tickFormat) : tickFormat;
		x = applyRange(linear().domain([-1, range.length - 1]), [marginLeft, width - marginRight]);
		svg.append("g").attr("fill-opacity", opacity).selectAll().data(range).enter().append("rect").attr("x", (d, i) => x(i - 1)).attr("y", marginTop).attr("width", (d, i) => x(i) - x(i - 1)).attr("height", height - marginTop - marginBottom).attr("fill", (d) => d);
		ticks = map$1(thresholds, (_, i) => i);
		tickFormat = (i) => thresholdFormat(thresholds[i], i);
	} else {
		x = applyRange(band().domain(domain), [marginLeft, width - marginRight]);
		svg.append("g").attr("fill-opacity", opacity).selectAll().data(domain).enter().append("rect").attr("x", x).attr("y", marginTop).attr("width", Math.max(0, x.bandwidth() - 1)).attr("height", height - marginTop - marginBottom).attr("fill", scale);
		tickAdjust = () => {};
	}
	svg.append("g").attr("transform", `translate(0,${height - marginBottom})`).call(axisBottom(x).ticks(Array.isArray(ticks) ? null : ticks, typeof tickFormat === "string" ? tickFormat : void 0).tickFormat(typeof tickFormat === "function" ? tickFormat : void 0).tickSize(tickSize).tickValues(Array.isArray(ticks) ? ticks : null)).attr("font-size", null).attr("font-family", null).attr("font-variant", impliedString(fontVariant, "normal")).call(tickAdjust).call((g) => g.select(".domain").remove());
	if (label !== void 0) svg.append("text").attr("x", marginLeft).attr("y", marginTop - 6).attr("fill", "currentColor").attr("font-weight", "bold").text(label);
	return svg.node();
}
// node_modules/@observablehq/plot/src/math.js
var radians = Math.PI / 180;
// node_modules/@observablehq/plot/src/marker.js
function markers(mark, { marker, markerStart = marker, markerMid = marker, markerEnd = marker } = {}) {
	mark.markerStart = maybeMarker(markerStart);
	mark.markerMid = maybeMarker(markerMid);
	mark.markerEnd = maybeMarker(markerEnd);
}
function maybeMarker(marker) {
	if (marker == null || marker === false) return null;
	if (marker === true) return markerCircleFill;
	if (typeof marker === "function") return marker;
	switch (`${marker}`.toLowerCase()) {
		case "none": return null;
		case "arrow": return markerArrow("auto");
		case "arrow-reverse": return markerArrow("auto-start-reverse");
		case "dot": return markerDot;
		case "circle":
		case "circle-fill": return markerCircleFill;
		case "circle-stroke": return markerCircleStroke;
		case "tick": return markerTick("auto");
		case "tick-x": return markerTick(90);
		case "tick-y": return markerTick(0);
	}
	throw new Error(`invalid marker: ${marker}`);
}
function markerArrow(orient) {
	return (color, context) => create("svg:marker", context).attr("viewBox", "-5 -5 10 10").attr("markerWidth", 6.67).attr("markerHeight", 6.67).attr("orient", orient).attr("fill", "none").attr("stroke", color).attr("stroke-width", 1.5).attr("stroke-linecap", "round").attr("stroke-linejoin", "round").call((marker) => marker.append("path").attr("d", "M-1.5,-3l3,3l-3,3")).node();
}
function markerDot(color, context) {
	return create("svg:marker", context).attr("viewBox", "-5 -5 10 10").attr("markerWidth", 6.67).attr("markerHeight", 6.67).attr("fill", color).attr("stroke", "none").call((marker) => marker.append("circle").attr("r", 2.5)).node();
}
function markerCircleFill(color, context) {
	return create("svg:marker", context).attr("viewBox", "-5 -5 10 10").attr("markerWidth", 6.67).attr("markerHeight", 6.67).attr("fill", color).attr("stroke", "var(--plot-background)").attr("stroke-width", 1.5).call((marker) => marker.append("circle").attr("r", 3)).node();
}
function markerCircleStroke(color, context) {
	return create("svg:marker", context).attr("viewBox", "-5 -5 10 10").attr("markerWidth", 6.67).attr("markerHeight", 6.67).attr("fill", "var(--plot-background)").attr("stroke", color).attr("stroke-width", 1.5).call((marker) => marker.append("circle").attr("r", 3)).node();
}
function markerTick(orient) {
	return (color, context) => create("svg:marker", context).attr("viewBox", "-3 -3 6 6").attr("markerWidth", 6).attr("markerHeight", 6).attr("orient", orient).attr("stroke", color).call((marker) => marker.append("path").attr("d", "M0,-3v6")).node();
}
var nextMarkerId = 0;
function applyMarkers(path, mark, { stroke: S }, context) {
	return applyMarkersColor(path, mark, S && ((i) => S[i]), null, context);
}
function applyGroupedMarkers(path, mark, { stroke: S, z: Z }, context) {
	return applyMarkersColor(path, mark, S && (([i]) => S[i]), Z, context);
}
var START = 1;
var END = 2;
/**
* When rendering lines or areas with variable aesthetics, a single series
* produces multiple path elements. The first path element is a START segment;
* the last path element is an END segment. When there is only a single path
* element, it is both a START and an END segment.
*/
function getGroupedOrientation(path, Z) {
	const O = new Uint8Array(Z.length);
	const D = path.data().filter((I) => I.length > 1);
	const n = D.length;
	for (let i = 0, z = unset; i < n; ++i) {
		const I = D[i];
		if (I.length > 1) {
			const i = I[0];
			if (z !== (z = keyof(Z[i]))) O[i] |= START;
		}
	}
	for (let i = n - 1, z = unset; i >= 0; --i) {
		const I = D[i];
		if (I.length > 1) {
			const i = I[0];
			if (z !== (z = keyof(Z[i]))) O[i] |= END;
		}
	}
	return ([i]) => O[i];
}
function applyMarkersColor(path, { markerStart, markerMid, markerEnd, stroke }, strokeof = () => stroke, Z, context) {
	if (!markerStart && !markerMid && !markerEnd) return;
	const iriByMarkerColor = /* @__PURE__ */ new Map();
	const orient = Z && getGroupedOrientation(path, Z);
	function applyMarker(name, marker, filter) {
		return function(i) {
			if (filter && !filter(i)) return;
			const color = strokeof(i);
			let iriByColor = iriByMarkerColor.get(marker);
			if (!iriByColor) iriByMarkerColor.set(marker, iriByColor = /* @__PURE__ */ new Map());
			let iri = iriByColor.get(color);
			if (!iri) {
				const node = this.parentNode.insertBefore(marker(color, context), this);
				const id = `plot-marker-${++nextMarkerId}`;
				node.setAttribute("id", id);
				iriByColor.set(color, iri = `url(#${id})`);
			}
			this.setAttribute(name, iri);
		};
	}
	if (markerStart) path.each(applyMarker("marker-start", markerStart, orient && ((i) => orient(i) & START)));
	if (markerMid && orient) path.each(applyMarker("marker-start", markerMid, (i) => !(orient(i) & START)));
	if (markerMid) path.each(applyMarker("marker-mid", markerMid));
	if (markerEnd) path.each(applyMarker("marker-end", markerEnd, orient && ((i) => orient(i) & END)));
}
// node_modules/@observablehq/plot/src/transforms/inset.js
function maybeInsetX({ inset, insetLeft, insetRight, ...options } = {}) {
	[insetLeft, insetRight] = maybeInset(inset, insetLeft, insetRight);
	return {
		inset,
		insetLeft,
		insetRight,
		...options
	};
}
function maybeInsetY({ inset, insetTop, insetBottom, ...options } = {}) {
	[insetTop, insetBottom] = maybeInset(inset, insetTop, insetBottom);
	return {
		inset,
		insetTop,
		insetBottom,
		...options
	};
}
function maybeInset(inset, inset1, inset2) {
	return inset === void 0 && inset1 === void 0 && inset2 === void 0 ? offset ? [1, 0] : [.5, .5] : [inset1, inset2];
}
// node_modules/@observablehq/plot/src/transforms/interval.js
function maybeIntervalValue(value, { interval }) {
	value = { ...maybeValue(value) };
	value.interval = maybeInterval(value.interval === void 0 ? interval : value.interval);
	return value;
}
function maybeIntervalK(k, maybeInsetK, options, trivial) {
	const { [k]: v, [`${k}1`]: v1, [`${k}2`]: v2 } = options;
	const { value, interval } = maybeIntervalValue(v, options);
	if (value == null || interval == null && !trivial) return options;
	const label = labelof(v);
	if (interval == null) {
		let V;
		const kv = {
			transform: (data) => V || (V = valueof(data, value)),
			label
		};
		return {
			...options,
			[k]: void 0,
			[`${k}1`]: v1 === void 0 ? kv : v1,
			[`${k}2`]: v2 === void 0 && !(v1 === v2 && trivial) ? kv : v2
		};
	}
	let D1, V1;
	function transform(data) {
		if (V1 !== void 0 && data === D1) return V1;
		return V1 = map$1(valueof(D1 = data, value), (v) => interval.floor(v));
	}
	return maybeInsetK({
		...options,
		[k]: void 0,
		[`${k}1`]: v1 === void 0 ? {
			transform,
			label
		} : v1,
		[`${k}2`]: v2 === void 0 ? {
			transform: (data) => transform(data).map((v) => interval.offset(v)),
			label
		} : v2
	});
}
function maybeIntervalMidK(k, maybeInsetK, options) {
	const { [k]: v } = options;
	const { value, interval } = maybeIntervalValue(v, options);
	if (value == null || interval == null) return options;
	return maybeInsetK({
		...options,
		[k]: {
			label: labelof(v),
			transform: (data) => {
				const V1 = map$1(valueof(data, value), (v) => interval.floor(v));
				const V2 = V1.map((v) => interval.offset(v));
				return V1.map(isTemporal(V1) ? (v1, v2) => v1 == null || isNaN(v1 = +v1) || (v2 = V2[v2], v2 == null) || isNaN(v2 = +v2) ? void 0 : /* @__PURE__ */ new Date((v1 + v2) / 2) : (v1, v2) => v1 == null || (v2 = V2[v2], v2 == null) ? NaN : (+v1 + +v2) / 2);
			}
		}
	});
}
function maybeIntervalX(options = {}) {
	return maybeIntervalK("x", maybeInsetX, options);
}
function maybeIntervalY(options = {}) {
	return maybeIntervalK("y", maybeInsetY, options);
}
function maybeIntervalMidX(options = {}) {
	return maybeIntervalMidK("x", maybeInsetX, options);
}
function maybeIntervalMidY(options = {}) {
	return maybeIntervalMidK("y", maybeInsetY, options);
}
// node_modules/@observablehq/plot/src/marks/rule.js
var defaults$8 = {
	ariaLabel: "rule",
	fill: null,
	stroke: "currentColor"
};
var RuleX = class extends Mark {
	constructor(data, options = {}) {
		const { x, y1, y2, inset = 0, insetTop = inset, insetBottom = inset } = options;
		super(data, {
			x: {
				value: x,
				scale: "x",
				optional: true
			},
			y1: {
				value: y1,
				scale: "y",
				optional: true
			},
			y2: {
				value: y2,
				scale: "y",
				optional: true
			}
		}, withTip(options, "x"), defaults$8);
		this.insetTop = number$2(insetTop);
		this.insetBottom = number$2(insetBottom);
		markers(this, options);
	}
	render(index, scales, channels, dimensions, context) {
		const { x, y } = scales;
		const { x: X, y1: Y1, y2: Y2 } = channels;
		const { width, height, marginTop, marginRight, marginLeft, marginBottom } = dimensions;
		const { insetTop, insetBottom } = this;
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyTransform, this, { x: X && x }, offset, 0).call((g) => g.selectAll().data(index).enter().append("line").call(applyDirectStyles, this).attr("x1", X ? (i) => X[i] : (marginLeft + width - marginRight) / 2).attr("x2", X ? (i) => X[i] : (marginLeft + width - marginRight) / 2).attr("y1", Y1 && !isCollapsed(y) ? (i) => Y1[i] + insetTop : marginTop + insetTop).attr("y2", Y2 && !isCollapsed(y) ? y.bandwidth ? (i) => Y2[i] + y.bandwidth() - insetBottom : (i) => Y2[i] - insetBottom : height - marginBottom - insetBottom).call(applyChannelStyles, this, channels).call(applyMarkers, this, channels, context)).node();
	}
};
var RuleY = class extends Mark {
	constructor(data, options = {}) {
		const { x1, x2, y, inset = 0, insetRight = inset, insetLeft = inset } = options;
		super(data, {
			y: {
				value: y,
				scale: "y",
				optional: true
			},
			x1: {
				value: x1,
				scale: "x",
				optional: true
			},
			x2: {
				value: x2,
				scale: "x",
				optional: true
			}
		}, withTip(options, "y"), defaults$8);
		this.insetRight = number$2(insetRight);
		this.insetLeft = number$2(insetLeft);
		markers(this, options);
	}
	render(index, scales, channels, dimensions, context) {
		const { x, y } = scales;
		const { y: Y, x1: X1, x2: X2 } = channels;
		const { width, height, marginTop, marginRight, marginLeft, marginBottom } = dimensions;
		const { insetLeft, insetRight } = this;
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyTransform, this, { y: Y && y }, 0, offset).call((g) => g.selectAll().data(index).enter().append("line").call(applyDirectStyles, this).attr("x1", X1 && !isCollapsed(x) ? (i) => X1[i] + insetLeft : marginLeft + insetLeft).attr("x2", X2 && !isCollapsed(x) ? x.bandwidth ? (i) => X2[i] + x.bandwidth() - insetRight : (i) => X2[i] - insetRight : width - marginRight - insetRight).attr("y1", Y ? (i) => Y[i] : (marginTop + height - marginBottom) / 2).attr("y2", Y ? (i) => Y[i] : (marginTop + height - marginBottom) / 2).call(applyChannelStyles, this, channels).call(applyMarkers, this, channels, context)).node();
	}
};
function ruleX(data, options) {
	let { x = identity$1, y, y1, y2, ...rest } = maybeIntervalY(options);
	[y1, y2] = maybeOptionalZero(y, y1, y2);
	return new RuleX(data, {
		...rest,
		x,
		y1,
		y2
	});
}
function ruleY(data, options) {
	let { y = identity$1, x, x1, x2, ...rest } = maybeIntervalX(options);
	[x1, x2] = maybeOptionalZero(x, x1, x2);
	return new RuleY(data, {
		...rest,
		y,
		x1,
		x2
	});
}
function maybeOptionalZero(x, x1, x2) {
	if (x == null) {
		if (x1 === void 0) {
			if (x2 !== void 0) return [0, x2];
		} else if (x2 === void 0) return [0, x1];
	} else if (x1 === void 0) return x2 === void 0 ? [0, x] : [x, x2];
	else if (x2 === void 0) return [x, x1];
	return [x1, x2];
}
// node_modules/@observablehq/plot/src/template.js
function template(strings, ...parts) {
	let n = parts.length;
	for (let j = 0, copy = true; j < n; ++j) if (typeof parts[j] !== "function") {
		if (copy) {
			strings = strings.slice();
			copy = false;
		}
		strings.splice(j, 2, strings[j] + parts[j] + strings[j + 1]);
		parts.splice(j, 1);
		--j, --n;
	}
	return (i) => {
		let s = strings[0];
		for (let j = 0; j < n; ++j) s += parts[j](i) + strings[j + 1];
		return s;
	};
}
// node_modules/@observablehq/plot/src/marks/text.js
var defaults$7 = {
	ariaLabel: "text",
	strokeLinejoin: "round",
	strokeWidth: 3,
	paintOrder: "stroke"
};
var softHyphen = "­";
var Text = class extends Mark {
	constructor(data, options = {}) {
		const { x, y, text = isIterable(data) && isTextual(data) ? identity$1 : indexOf, frameAnchor, textAnchor = /right$/i.test(frameAnchor) ? "end" : /left$/i.test(frameAnchor) ? "start" : "middle", lineAnchor = /^top/i.test(frameAnchor) ? "top" : /^bottom/i.test(frameAnchor) ? "bottom" : "middle", lineHeight = 1, lineWidth = Infinity, textOverflow, monospace, fontFamily = monospace ? "ui-monospace, monospace" : void 0, fontSize, fontStyle, fontVariant, fontWeight, rotate } = options;
		const [vrotate, crotate] = maybeNumberChannel(rotate, 0);
		const [vfontSize, cfontSize] = maybeFontSizeChannel(fontSize);
		super(data, {
			x: {
				value: x,
				scale: "x",
				optional: true
			},
			y: {
				value: y,
				scale: "y",
				optional: true
			},
			fontSize: {
				value: vfontSize,
				optional: true
			},
			rotate: {
				value: numberChannel(vrotate),
				optional: true
			},
			text: {
				value: text,
				filter: nonempty,
				optional: true
			}
		}, options, defaults$7);
		this.rotate = crotate;
		this.textAnchor = impliedString(textAnchor, "middle");
		this.lineAnchor = keyword(lineAnchor, "lineAnchor", [
			"top",
			"middle",
			"bottom"
		]);
		this.lineHeight = +lineHeight;
		this.lineWidth = +lineWidth;
		this.textOverflow = maybeTextOverflow(textOverflow);
		this.monospace = !!monospace;
		this.fontFamily = string(fontFamily);
		this.fontSize = cfontSize;
		this.fontStyle = string(fontStyle);
		this.fontVariant = string(fontVariant);
		this.fontWeight = string(fontWeight);
		this.frameAnchor = maybeFrameAnchor(frameAnchor);
		if (!(this.lineWidth >= 0)) throw new Error(`invalid lineWidth: ${lineWidth}`);
		this.splitLines = splitter(this);
		this.clipLine = clipper(this);
	}
	render(index, scales, channels, dimensions, context) {
		const { x, y } = scales;
		const { x: X, y: Y, rotate: R, text: T, title: TL, fontSize: FS } = channels;
		const { rotate } = this;
		const [cx, cy] = applyFrameAnchor(this, dimensions);
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyIndirectTextStyles, this, T, dimensions).call(applyTransform, this, {
			x: X && x,
			y: Y && y
		}).call((g) => g.selectAll().data(index).enter().append("text").call(applyDirectStyles, this).call(applyMultilineText, this, T, TL).attr("transform", template`translate(${X ? (i) => X[i] : cx},${Y ? (i) => Y[i] : cy})${R ? (i) => ` rotate(${R[i]})` : rotate ? ` rotate(${rotate})` : ``}`).call(applyAttr, "font-size", FS && ((i) => FS[i])).call(applyChannelStyles, this, channels)).node();
	}
};
function maybeTextOverflow(textOverflow) {
	return textOverflow == null ? null : keyword(textOverflow, "textOverflow", [
		"clip",
		"ellipsis",
		"clip-start",
		"clip-end",
		"ellipsis-start",
		"ellipsis-middle",
		"ellipsis-end"
	]).replace(/^(clip|ellipsis)$/, "$1-end");
}
function applyMultilineText(selection, mark, T, TL) {
	if (!T) return;
	const { lineAnchor, lineHeight, textOverflow, splitLines, clipLine } = mark;
	selection.each(function(i) {
		const lines = splitLines(formatDefault(T[i]) ?? "").map(clipLine);
		const n = lines.length;
		const y = lineAnchor === "top" ? .71 : lineAnchor === "bottom" ? 1 - n : (164 - n * 100) / 200;
		if (n > 1) {
			let m = 0;
			for (let i = 0; i < n; ++i) {
				++m;
				if (!lines[i]) continue;
				const tspan = this.ownerDocument.createElementNS(namespaces.svg, "tspan");
				tspan.setAttribute("x", 0);
				if (i === m - 1) tspan.setAttribute("y", `${(y + i) * lineHeight}em`);
				else tspan.setAttribute("dy", `${m * lineHeight}em`);
				tspan.textContent = lines[i];
				this.appendChild(tspan);
				m = 0;
			}
		} else {
			if (y) this.setAttribute("y", `${y * lineHeight}em`);
			this.textContent = lines[0];
		}
		if (textOverflow && !TL && lines[0] !== T[i]) {
			const title = this.ownerDocument.createElementNS(namespaces.svg, "title");
			title.textContent = T[i];
			this.appendChild(title);
		}
	});
}
function text$1(data, { x, y, ...options } = {}) {
	if (options.frameAnchor === void 0) [x, y] = maybeTuple(x, y);
	return new Text(data, {
		...options,
		x,
		y
	});
}
function textX(data, { x = identity$1, ...options } = {}) {
	return new Text(data, maybeIntervalMidY({
		...options,
		x
	}));
}
function textY(data, { y = identity$1, ...options } = {}) {
	return new Text(data, maybeIntervalMidX({
		...options,
		y
	}));
}
function applyIndirectTextStyles(selection, mark, T) {
	applyAttr(selection, "text-anchor", mark.textAnchor);
	applyAttr(selection, "font-family", mark.fontFamily);
	applyAttr(selection, "font-size", mark.fontSize);
	applyAttr(selection, "font-style", mark.fontStyle);
	applyAttr(selection, "font-variant", mark.fontVariant === void 0 ? inferFontVariant$1(T) : mark.fontVariant);
	applyAttr(selection, "font-weight", mark.fontWeight);
}
function inferFontVariant$1(T) {
	return T && (isNumeric(T) || isTemporal(T)) ? "tabular-nums" : void 0;
}
var fontSizes = /* @__PURE__ */ new Set([
	"inherit",
	"initial",
	"revert",
	"unset",
	"xx-small",
	"x-small",
	"small",
	"medium",
	"large",
	"x-large",
	"xx-large",
	"xxx-large",
	"larger",
	"smaller"
]);
function maybeFontSizeChannel(fontSize) {
	if (fontSize == null || typeof fontSize === "number") return [void 0, fontSize];
	if (typeof fontSize !== "string") return [fontSize, void 0];
	fontSize = fontSize.trim().toLowerCase();
	return fontSizes.has(fontSize) || /^[+-]?\d*\.?\d+(e[+-]?\d+)?(\w*|%)$/.test(fontSize) ? [void 0, fontSize] : [fontSize, void 0];
}
function lineWrap(input, maxWidth, widthof) {
	const lines = [];
	let lineStart, lineEnd = 0;
	for (const [wordStart, wordEnd, required] of lineBreaks(input)) {
		if (lineStart === void 0) lineStart = wordStart;
		if (lineEnd > lineStart && widthof(input, lineStart, wordEnd) > maxWidth) {
			lines.push(input.slice(lineStart, lineEnd) + (input[lineEnd - 1] === softHyphen ? "-" : ""));
			lineStart = wordStart;
		}
		if (required) {
			lines.push(input.slice(lineStart, wordEnd));
			lineStart = void 0;
			continue;
		}
		lineEnd = wordEnd;
	}
	return lines;
}
function* lineBreaks(input) {
	let i = 0, j = 0;
	const n = input.length;
	while (j < n) {
		let k = 1;
		switch (input[j]) {
			case softHyphen:
			case "-":
				++j;
				yield [
					i,
					j,
					false
				];
				i = j;
				break;
			case " ":
				yield [
					i,
					j,
					false
				];
				while (input[++j] === " ");
				i = j;
				break;
			case "\r": if (input[j + 1] === "\n") ++k;
			case "\n":
				yield [
					i,
					j,
					true
				];
				j += k;
				i = j;
				break;
			default: ++j;
		}
	}
	yield [
		i,
		j,
		true
	];
}
var defaultWidthMap = {
	a: 56,
	b: 63,
	c: 57,
	d: 63,
	e: 58,
	f: 37,
	g: 62,
	h: 60,
	i: 26,
	j: 26,
	k: 55,
	l: 26,
	m: 88,
	n: 60,
	o: 60,
	p: 62,
	q: 62,
	r: 39,
	s: 54,
	t: 38,
	u: 60,
	v: 55,
	w: 79,
	x: 54,
	y: 55,
	z: 55,
	A: 69,
	B: 67,
	C: 73,
	D: 74,
	E: 61,
	F: 58,
	G: 76,
	H: 75,
	I: 28,
	J: 55,
	K: 67,
	L: 58,
	M: 89,
	N: 75,
	O: 78,
	P: 65,
	Q: 78,
	R: 67,
	S: 65,
	T: 65,
	U: 75,
	V: 69,
	W: 98,
	X: 69,
	Y: 67,
	Z: 67,
	0: 64,
	1: 48,
	2: 62,
	3: 64,
	4: 66,
	5: 63,
	6: 65,
	7: 58,
	8: 65,
	9: 65,
	" ": 29,
	"!": 32,
	"\"": 49,
	"'": 31,
	"(": 39,
	")": 39,
	",": 31,
	"-": 48,
	".": 31,
	"/": 32,
	":": 31,
	";": 31,
	"?": 52,
	"‘": 31,
	"’": 31,
	"“": 47,
	"”": 47,
	"…": 82
};
function defaultWidth(text, start = 0, end = text.length) {
	let sum = 0;
	for (let i = start; i < end; i = readCharacter(text, i)) sum += defaultWidthMap[text[i]] ?? (isPictographic(text, i) ? 120 : defaultWidthMap.e);
	return sum;
}
function monospaceWidth(text, start = 0, end = text.length) {
	let sum = 0;
	for (let i = start; i < end; i = readCharacter(text, i)) sum += isPictographic(text, i) ? 126 : 63;
	return sum;
}
function splitter({ monospace, lineWidth, textOverflow }) {
	if (textOverflow != null || lineWidth == Infinity) return (text) => text.split(/\r\n?|\n/g);
	const widthof = monospace ? monospaceWidth : defaultWidth;
	const maxWidth = lineWidth * 100;
	return (text) => lineWrap(text, maxWidth, widthof);
}
function clipper({ monospace, lineWidth, textOverflow }) {
	if (textOverflow == null || lineWidth == Infinity) return (text) => text;
	const widthof = monospace ? monospaceWidth : defaultWidth;
	const maxWidth = lineWidth * 100;
	switch (textOverflow) {
		case "clip-start": return (text) => clipStart(text, maxWidth, widthof, "");
		case "clip-end": return (text) => clipEnd(text, maxWidth, widthof, "");
		case "ellipsis-start": return (text) => clipStart(text, maxWidth, widthof, "…");
		case "ellipsis-middle": return (text) => clipMiddle(text, maxWidth, widthof, "…");
		case "ellipsis-end": return (text) => clipEnd(text, maxWidth, widthof, "…");
	}
}
function cut(text, width, widthof, inset) {
	const I = [];
	let w = 0;
	for (let i = 0, j = 0, n = text.length; i < n; i = j) {
		j = readCharacter(text, i);
		const l = widthof(text, i, j);
		if (w + l > width) {
			w += inset;
			while (w > width && i > 0) j = i, i = I.pop(), w -= widthof(text, i, j);
			return [i, width - w];
		}
		w += l;
		I.push(i);
	}
	return [-1, 0];
}
function clipEnd(text, width, widthof, ellipsis) {
	text = text.trim();
	const e = widthof(ellipsis);
	const [i] = cut(text, width, widthof, e);
	return i < 0 ? text : text.slice(0, i).trimEnd() + ellipsis;
}
function clipMiddle(text, width, widthof, ellipsis) {
	text = text.trim();
	const w = widthof(text);
	if (w <= width) return text;
	const e = widthof(ellipsis) / 2;
	const [i, ei] = cut(text, width / 2, widthof, e);
	const [j] = cut(text, w - width / 2 - ei + e, widthof, -e);
	return j < 0 ? ellipsis : text.slice(0, i).trimEnd() + ellipsis + text.slice(readCharacter(text, j)).trimStart();
}
function clipStart(text, width, widthof, ellipsis) {
	text = text.trim();
	const w = widthof(text);
	if (w <= width) return text;
	const e = widthof(ellipsis);
	const [j] = cut(text, w - width + e, widthof, -e);
	return j < 0 ? ellipsis : ellipsis + text.slice(readCharacter(text, j)).trimStart();
}
var reCombiner = /[\p{Combining_Mark}\p{Emoji_Modifier}]+/uy;
var rePictographic = /\p{Extended_Pictographic}/uy;
function readCharacter(text, i) {
	i += isSurrogatePair(text, i) ? 2 : 1;
	if (isCombiner(text, i)) i = reCombiner.lastIndex;
	if (isZeroWidthJoiner(text, i)) return readCharacter(text, i + 1);
	return i;
}
function isAscii(text, i) {
	return text.charCodeAt(i) < 128;
}
function isSurrogatePair(text, i) {
	const hi = text.charCodeAt(i);
	if (hi >= 55296 && hi < 56320) {
		const lo = text.charCodeAt(i + 1);
		return lo >= 56320 && lo < 57344;
	}
	return false;
}
function isZeroWidthJoiner(text, i) {
	return text.charCodeAt(i) === 8205;
}
function isCombiner(text, i) {
	return isAscii(text, i) ? false : (reCombiner.lastIndex = i, reCombiner.test(text));
}
function isPictographic(text, i) {
	return isAscii(text, i) ? false : (rePictographic.lastIndex = i, rePictographic.test(text));
}
// node_modules/@observablehq/plot/src/marks/vector.js
var defaults$6 = {
	ariaLabel: "vector",
	fill: "none",
	stroke: "currentColor",
	strokeWidth: 1.5,
	strokeLinejoin: "round",
	strokeLinecap: "round"
};
var defaultRadius = 3.5;
var wingRatio = defaultRadius * 5;
var shapeArrow = { draw(context, l, r) {
	const wing = l * r / wingRatio;
	context.moveTo(0, 0);
	context.lineTo(0, -l);
	context.moveTo(-wing, wing - l);
	context.lineTo(0, -l);
	context.lineTo(wing, wing - l);
} };
var shapes = /* @__PURE__ */ new Map([["arrow", shapeArrow], ["spike", { draw(context, l, r) {
	context.moveTo(-r, 0);
	context.lineTo(0, -l);
	context.lineTo(r, 0);
} }]]);
function isShapeObject(value) {
	return value && typeof value.draw === "function";
}
function maybeShape(shape) {
	if (isShapeObject(shape)) return shape;
	const value = shapes.get(`${shape}`.toLowerCase());
	if (value) return value;
	throw new Error(`invalid shape: ${shape}`);
}
var Vector = class extends Mark {
	constructor(data, options = {}) {
		const { x, y, r = defaultRadius, length, rotate, shape = shapeArrow, anchor = "middle", frameAnchor } = options;
		const [vl, cl] = maybeNumberChannel(length, 12);
		const [vr, cr] = maybeNumberChannel(rotate, 0);
		super(data, {
			x: {
				value: x,
				scale: "x",
				optional: true
			},
			y: {
				value: y,
				scale: "y",
				optional: true
			},
			length: {
				value: vl,
				scale: "length",
				optional: true
			},
			rotate: {
				value: vr,
				optional: true
			}
		}, options, defaults$6);
		this.r = +r;
		this.length = cl;
		this.rotate = cr;
		this.shape = maybeShape(shape);
		this.anchor = keyword(anchor, "anchor", [
			"start",
			"middle",
			"end"
		]);
		this.frameAnchor = maybeFrameAnchor(frameAnchor);
	}
	render(index, scales, channels, dimensions, context) {
		const { x, y } = scales;
		const { x: X, y: Y, length: L, rotate: A } = channels;
		const { length, rotate, anchor, shape, r } = this;
		const [cx, cy] = applyFrameAnchor(this, dimensions);
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyTransform, this, {
			x: X && x,
			y: Y && y
		}).call((g) => g.selectAll().data(index).enter().append("path").call(applyDirectStyles, this).attr("transform", template`translate(${X ? (i) => X[i] : cx},${Y ? (i) => Y[i] : cy})${A ? (i) => ` rotate(${A[i]})` : rotate ? ` rotate(${rotate})` : ``}${anchor === "start" ? `` : anchor === "end" ? L ? (i) => ` translate(0,${L[i]})` : ` translate(0,${length})` : L ? (i) => ` translate(0,${L[i] / 2})` : ` translate(0,${length / 2})`}`).attr("d", L ? (i) => {
			const p = pathRound();
			shape.draw(p, L[i], r);
			return p;
		} : (() => {
			const p = pathRound();
			shape.draw(p, length, r);
			return p;
		})()).call(applyChannelStyles, this, channels)).node();
	}
};
function vectorX(data, options = {}) {
	const { x = identity$1, ...rest } = options;
	return new Vector(data, {
		...rest,
		x
	});
}
function vectorY(data, options = {}) {
	const { y = identity$1, ...rest } = options;
	return new Vector(data, {
		...rest,
		y
	});
}
// node_modules/@observablehq/plot/src/marks/axis.js
function maybeData(data, options) {
	if (arguments.length < 2 && !isIterable(data)) options = data, data = null;
	if (options === void 0) options = {};
	return [data, options];
}
function maybeAnchor({ anchor } = {}, anchors) {
	return anchor === void 0 ? anchors[0] : keyword(anchor, "anchor", anchors);
}
function anchorY(options) {
	return maybeAnchor(options, ["left", "right"]);
}
function anchorFy(options) {
	return maybeAnchor(options, ["right", "left"]);
}
function anchorX(options) {
	return maybeAnchor(options, ["bottom", "top"]);
}
function anchorFx(options) {
	return maybeAnchor(options, ["top", "bottom"]);
}
function axisY() {
	const [data, options] = maybeData(...arguments);
	return axisKy("y", anchorY(options), data, options);
}
function axisFy() {
	const [data, options] = maybeData(...arguments);
	return axisKy("fy", anchorFy(options), data, options);
}
function axisX() {
	const [data, options] = maybeData(...arguments);
	return axisKx("x", anchorX(options), data, options);
}
function axisFx() {
	const [data, options] = maybeData(...arguments);
	return axisKx("fx", anchorFx(options), data, options);
}
function axisKy(k, anchor, data, { color = "currentColor", opacity = 1, stroke = color, strokeOpacity = opacity, strokeWidth = 1, fill = color, fillOpacity = opacity, textAnchor, textStroke, textStrokeOpacity, textStrokeWidth, tickSize = k === "y" ? 6 : 0, tickPadding, tickRotate, x, margin, marginTop = margin === void 0 ? 20 : margin, marginRight = margin === void 0 ? anchor === "right" ? 40 : 0 : margin, marginBottom = margin === void 0 ? 20 : margin, marginLeft = margin === void 0 ? anchor === "left" ? 40 : 0 : margin, label, labelAnchor, labelArrow, labelOffset, ariaLabel = `${k}-axis`, ...options }) {
	tickSize = number$2(tickSize);
	tickPadding = number$2(tickPadding);
	tickRotate = number$2(tickRotate);
	if (labelAnchor !== void 0) labelAnchor = keyword(labelAnchor, "labelAnchor", [
		"center",
		"top",
		"bottom"
	]);
	labelArrow = maybeLabelArrow(labelArrow);
	return marks(tickSize && !isNoneish(stroke) ? axisTickKy(k, anchor, data, {
		stroke,
		strokeOpacity,
		strokeWidth,
		tickSize,
		tickPadding,
		tickRotate,
		x,
		ariaLabel,
		...options
	}) : null, !isNoneish(fill) ? axisTextKy(k, anchor, data, {
		fill,
		fillOpacity,
		stroke: textStroke,
		strokeOpacity: textStrokeOpacity,
		strokeWidth: textStrokeWidth,
		textAnchor,
		tickSize,
		tickPadding,
		tickRotate,
		x,
		marginTop,
		marginRight,
		marginBottom,
		marginLeft,
		ariaLabel,
		...options
	}) : null, !isNoneish(fill) && label !== null ? text$1([], labelOptions({
		fill,
		fillOpacity,
		...options
	}, function(data, facets, channels, scales, dimensions) {
		const scale = scales[k];
		const { marginTop, marginRight, marginBottom, marginLeft } = k === "y" && dimensions.inset || dimensions;
		const cla = labelAnchor ?? (scale.bandwidth ? "center" : "top");
		const clo = labelOffset ?? (anchor === "right" ? marginRight : marginLeft) - 3;
		if (cla === "center") {
			this.textAnchor = void 0;
			this.lineAnchor = anchor === "right" ? "bottom" : "top";
			this.frameAnchor = anchor;
			this.rotate = -90;
		} else {
			this.textAnchor = anchor === "right" ? "end" : "start";
			this.lineAnchor = cla;
			this.frameAnchor = `${cla}-${anchor}`;
			this.rotate = 0;
		}
		this.dy = cla === "top" ? 3 - marginTop : cla === "bottom" ? marginBottom - 3 : 0;
		this.dx = anchor === "right" ? clo : -clo;
		this.ariaLabel = `${ariaLabel} label`;
		return {
			facets: [[0]],
			channels: { text: { value: [formatAxisLabel(k, scale, {
				anchor,
				label,
				labelAnchor: cla,
				labelArrow
			})] } }
		};
	})) : null);
}
function axisKx(k, anchor, data, { color = "currentColor", opacity = 1, stroke = color, strokeOpacity = opacity, strokeWidth = 1, fill = color, fillOpacity = opacity, textAnchor, textStroke, textStrokeOpacity, textStrokeWidth, tickSize = k === "x" ? 6 : 0, tickPadding, tickRotate, y, margin, marginTop = margin === void 0 ? anchor === "top" ? 30 : 0 : margin, marginRight = margin === void 0 ? 20 : margin, marginBottom = margin === void 0 ? anchor === "bottom" ? 30 : 0 : margin, marginLeft = margin === void 0 ? 20 : margin, label, labelAnchor, labelArrow, labelOffset, ariaLabel = `${k}-axis`, ...options }) {
	tickSize = number$2(tickSize);
	tickPadding = number$2(tickPadding);
	tickRotate = number$2(tickRotate);
	if (labelAnchor !== void 0) labelAnchor = keyword(labelAnchor, "labelAnchor", [
		"center",
		"left",
		"right"
	]);
	labelArrow = maybeLabelArrow(labelArrow);
	return marks(tickSize && !isNoneish(stroke) ? axisTickKx(k, anchor, data, {
		stroke,
		strokeOpacity,
		strokeWidth,
		tickSize,
		tickPadding,
		tickRotate,
		y,
		ariaLabel,
		...options
	}) : null, !isNoneish(fill) ? axisTextKx(k, anchor, data, {
		fill,
		fillOpacity,
		stroke: textStroke,
		strokeOpacity: textStrokeOpacity,
		strokeWidth: textStrokeWidth,
		textAnchor,
		tickSize,
		tickPadding,
		tickRotate,
		y,
		marginTop,
		marginRight,
		marginBottom,
		marginLeft,
		ariaLabel,
		...options
	}) : null, !isNoneish(fill) && label !== null ? text$1([], labelOptions({
		fill,
		fillOpacity,
		...options
	}, function(data, facets, channels, scales, dimensions) {
		const scale = scales[k];
		const { marginTop, marginRight, marginBottom, marginLeft } = k === "x" && dimensions.inset || dimensions;
		const cla = labelAnchor ?? (scale.bandwidth ? "center" : "right");
		const clo = labelOffset ?? (anchor === "top" ? marginTop : marginBottom) - 3;
		if (cla === "center") {
			this.frameAnchor = anchor;
			this.textAnchor = void 0;
		} else {
			this.frameAnchor = `${anchor}-${cla}`;
			this.textAnchor = cla === "right" ? "end" : "start";
		}
		this.lineAnchor = anchor;
		this.dy = anchor === "top" ? -clo : clo;
		this.dx = cla === "right" ? marginRight - 3 : cla === "left" ? 3 - marginLeft : 0;
		this.ariaLabel = `${ariaLabel} label`;
		return {
			facets: [[0]],
			channels: { text: { value: [formatAxisLabel(k, scale, {
				anchor,
				label,
				labelAnchor: cla,
				labelArrow
			})] } }
		};
	})) : null);
}
function axisTickKy(k, anchor, data, { strokeWidth = 1, strokeLinecap = null, strokeLinejoin = null, facetAnchor = anchor + (k === "y" ? "-empty" : ""), frameAnchor = anchor, tickSize, inset = 0, insetLeft = inset, insetRight = inset, dx = 0, y = k === "y" ? void 0 : null, ariaLabel, ...options }) {
	return axisMark(vectorY, k, data, {
		ariaLabel: `${ariaLabel} tick`,
		ariaHidden: true
	}, {
		strokeWidth,
		strokeLinecap,
		strokeLinejoin,
		facetAnchor,
		frameAnchor,
		y,
		...options,
		dx: anchor === "left" ? +dx - offset + +insetLeft : +dx + offset - insetRight,
		anchor: "start",
		length: tickSize,
		shape: anchor === "left" ? shapeTickLeft : shapeTickRight
	});
}
function axisTickKx(k, anchor, data, { strokeWidth = 1, strokeLinecap = null, strokeLinejoin = null, facetAnchor = anchor + (k === "x" ? "-empty" : ""), frameAnchor = anchor, tickSize, inset = 0, insetTop = inset, insetBottom = inset, dy = 0, x = k === "x" ? void 0 : null, ariaLabel, ...options }) {
	return axisMark(vectorX, k, data, {
		ariaLabel: `${ariaLabel} tick`,
		ariaHidden: true
	}, {
		strokeWidth,
		strokeLinejoin,
		strokeLinecap,
		facetAnchor,
		frameAnchor,
		x,
		...options,
		dy: anchor === "bottom" ? +dy - offset - insetBottom : +dy + offset + +insetTop,
		anchor: "start",
		length: tickSize,
		shape: anchor === "bottom" ? shapeTickBottom : shapeTickTop
	});
}
function axisTextKy(k, anchor, data, { facetAnchor = anchor + (k === "y" ? "-empty" : ""), frameAnchor = anchor, tickSize, tickRotate = 0, tickPadding = Math.max(3, 9 - tickSize) + (Math.abs(tickRotate) > 60 ? 4 * Math.cos(tickRotate * radians) : 0), text, textAnchor = Math.abs(tickRotate) > 60 ? "middle" : anchor === "left" ? "end" : "start", lineAnchor = tickRotate > 60 ? "top" : tickRotate < -60 ? "bottom" : "middle", fontVariant, inset = 0, insetLeft = inset, insetRight = inset, dx = 0, ariaLabel, y = k === "y" ? void 0 : null, ...options }) {
	return axisMark(textY, k, data, { ariaLabel: `${ariaLabel} tick label` }, {
		facetAnchor,
		frameAnchor,
		text,
		textAnchor,
		lineAnchor,
		fontVariant,
		rotate: tickRotate,
		y,
		...options,
		dx: anchor === "left" ? +dx - tickSize - tickPadding + +insetLeft : +dx + +tickSize + +tickPadding - insetRight
	}, function(scale, data, ticks, tickFormat, channels) {
		if (fontVariant === void 0) this.fontVariant = inferFontVariant(scale);
		if (text === void 0) channels.text = inferTextChannel(scale, data, ticks, tickFormat, anchor);
	});
}
function axisTextKx(k, anchor, data, { facetAnchor = anchor + (k === "x" ? "-empty" : ""), frameAnchor = anchor, tickSize, tickRotate = 0, tickPadding = Math.max(3, 9 - tickSize) + (Math.abs(tickRotate) >= 10 ? 4 * Math.cos(tickRotate * radians) : 0), text, textAnchor = Math.abs(tickRotate) >= 10 ? tickRotate < 0 ^ anchor === "bottom" ? "start" : "end" : "middle", lineAnchor = Math.abs(tickRotate) >= 10 ? "middle" : anchor === "bottom" ? "top" : "bottom", fontVariant, inset = 0, insetTop = inset, insetBottom = inset, dy = 0, x = k === "x" ? void 0 : null, ariaLabel, ...options }) {
	return axisMark(textX, k, data, { ariaLabel: `${ariaLabel} tick label` }, {
		facetAnchor,
		frameAnchor,
		text: text === void 0 ? null : text,
		textAnchor,
		lineAnchor,
		fontVariant,
		rotate: tickRotate,
		x,
		...options,
		dy: anchor === "bottom" ? +dy + +tickSize + +tickPadding - insetBottom : +dy - tickSize - tickPadding + +insetTop
	}, function(scale, data, ticks, tickFormat, channels) {
		if (fontVariant === void 0) this.fontVariant = inferFontVariant(scale);
		if (text === void 0) channels.text = inferTextChannel(scale, data, ticks, tickFormat, anchor);
	});
}
function gridY() {
	const [data, options] = maybeData(...arguments);
	return gridKy("y", anchorY(options), data, options);
}
function gridFy() {
	const [data, options] = maybeData(...arguments);
	return gridKy("fy", anchorFy(options), data, options);
}
function gridX() {
	const [data, options] = maybeData(...arguments);
	return gridKx("x", anchorX(options), data, options);
}
function gridFx() {
	const [data, options] = maybeData(...arguments);
	return gridKx("fx", anchorFx(options), data, options);
}
function gridKy(k, anchor, data, { y = k === "y" ? void 0 : null, x = null, x1 = anchor === "left" ? x : null, x2 = anchor === "right" ? x : null, ariaLabel = `${k}-grid`, ariaHidden = true, ...options }) {
	return axisMark(ruleY, k, data, {
		ariaLabel,
		ariaHidden
	}, {
		y,
		x1,
		x2,
		...gridDefaults(options)
	});
}
function gridKx(k, anchor, data, { x = k === "x" ? void 0 : null, y = null, y1 = anchor === "top" ? y : null, y2 = anchor === "bottom" ? y : null, ariaLabel = `${k}-grid`, ariaHidden = true, ...options }) {
	return axisMark(ruleX, k, data, {
		ariaLabel,
		ariaHidden
	}, {
		x,
		y1,
		y2,
		...gridDefaults(options)
	});
}
function gridDefaults({ color = "currentColor", opacity = .1, stroke = color, strokeOpacity = opacity, strokeWidth = 1, ...options }) {
	return {
		stroke,
		strokeOpacity,
		strokeWidth,
		...options
	};
}
function labelOptions({ fill, fillOpacity, fontFamily, fontSize, fontStyle, fontVariant, fontWeight, monospace, pointerEvents, shapeRendering, clip = false }, initializer) {
	[, fill] = maybeColorChannel(fill);
	[, fillOpacity] = maybeNumberChannel(fillOpacity);
	return {
		facet: "super",
		x: null,
		y: null,
		fill,
		fillOpacity,
		fontFamily,
		fontSize,
		fontStyle,
		fontVariant,
		fontWeight,
		monospace,
		pointerEvents,
		shapeRendering,
		clip,
		initializer
	};
}
function axisMark(mark, k, data, properties, options, initialize) {
	let channels;
	function axisInitializer(data, facets, _channels, scales, dimensions, context) {
		const initializeFacets = data == null && (k === "fx" || k === "fy");
		const { [k]: scale } = scales;
		if (!scale) throw new Error(`missing scale: ${k}`);
		const domain = scale.domain();
		let { interval, ticks, tickFormat, tickSpacing = k === "x" ? 80 : 35 } = options;
		if (typeof ticks === "string" && hasTemporalDomain(scale)) interval = ticks, ticks = void 0;
		if (ticks === void 0) ticks = maybeRangeInterval(interval, scale.type) ?? inferTickCount(scale, tickSpacing);
		if (data == null) {
			if (isIterable(ticks)) data = arrayify(ticks);
			else if (isInterval(ticks)) data = inclusiveRange(ticks, ...extent$1(domain));
			else if (scale.interval) {
				let interval = scale.interval;
				if (scale.ticks) {
					const [min, max] = extent$1(domain);
					const n = (max - min) / interval[intervalDuration];
					interval = generalizeTimeInterval(interval, n / ticks) ?? interval;
					data = inclusiveRange(interval, min, max);
				} else {
					data = domain;
					const n = data.length;
					interval = generalizeTimeInterval(interval, n / ticks) ?? interval;
					if (interval !== scale.interval) data = inclusiveRange(interval, ...extent$1(data));
				}
				if (interval === scale.interval) {
					const n = Math.round(data.length / ticks);
					if (n > 1) data = data.filter((d, i) => i % n === 0);
				}
			} else if (scale.ticks) data = scale.ticks(ticks);
			else data = domain;
			if (!scale.ticks && data.length && data !== domain) {
				const domainSet = new InternSet(domain);
				data = data.filter((d) => domainSet.has(d));
				if (!data.length) warn(`Warning: the ${k}-axis ticks appear to not align with the scale domain, resulting in no ticks. Try different ticks?`);
			}
			if (k === "y" || k === "x") facets = [range(data)];
			else channels[k] = {
				scale: k,
				value: identity$1
			};
		}
		initialize?.call(this, scale, data, ticks, tickFormat, channels);
		const initializedChannels = Object.fromEntries(Object.entries(channels).map(([name, channel]) => {
			return [name, {
				...channel,
				value: valueof(data, channel.value)
			}];
		}));
		if (initializeFacets) facets = context.filterFacets(data, initializedChannels);
		return {
			data,
			facets,
			channels: initializedChannels
		};
	}
	const basicInitializer = initializer(options).initializer;
	const m = mark(data, initializer({
		...options,
		initializer: axisInitializer
	}, basicInitializer));
	if (data == null) {
		channels = m.channels;
		m.channels = {};
	} else channels = {};
	if (properties !== void 0) Object.assign(m, properties);
	if (m.clip === void 0) m.clip = false;
	return m;
}
function inferTickCount(scale, tickSpacing) {
	const [min, max] = extent$1(scale.range());
	return (max - min) / tickSpacing;
}
function inferTextChannel(scale, data, ticks, tickFormat, anchor) {
	return { value: inferTickFormat(scale, data, ticks, tickFormat, anchor) };
}
function inferTickFormat(scale, data, ticks, tickFormat, anchor) {
	return typeof tickFormat === "function" && !(scale.type === "log" && scale.tickFormat) ? tickFormat : tickFormat === void 0 && data && isTemporal(data) ? inferTimeFormat(scale.type, data, anchor) ?? formatDefault : scale.tickFormat ? scale.tickFormat(typeof ticks === "number" ? ticks : null, tickFormat) : typeof tickFormat === "string" && scale.domain().length > 0 ? (isTemporal(scale.domain()) ? utcFormat : format$1)(tickFormat) : tickFormat === void 0 ? formatDefault : constant(tickFormat);
}
function inclusiveRange(interval, min, max) {
	return interval.range(min, interval.offset(interval.floor(max)));
}
var shapeTickBottom = { draw(context, l) {
	context.moveTo(0, 0);
	context.lineTo(0, l);
} };
var shapeTickTop = { draw(context, l) {
	context.moveTo(0, 0);
	context.lineTo(0, -l);
} };
var shapeTickLeft = { draw(context, l) {
	context.moveTo(0, 0);
	context.lineTo(-l, 0);
} };
var shapeTickRight = { draw(context, l) {
	context.moveTo(0, 0);
	context.lineTo(l, 0);
} };
function inferFontVariant(scale) {
	return scale.bandwidth && !scale.interval ? void 0 : "tabular-nums";
}
function formatAxisLabel(k, scale, { anchor, label = scale.label, labelAnchor, labelArrow } = {}) {
	if (label == null || label.inferred && hasTemporalDomain(scale) && /^(date|time|year)$/i.test(label)) return;
	label = String(label);
	if (labelArrow === "auto") labelArrow = (!scale.bandwidth || scale.interval) && !/[↑↓→←]/.test(label);
	if (!labelArrow) return label;
	if (labelArrow === true) {
		const order = inferScaleOrder(scale);
		if (order) labelArrow = /x$/.test(k) || labelAnchor === "center" ? /x$/.test(k) === order < 0 ? "left" : "right" : order < 0 ? "up" : "down";
	}
	switch (labelArrow) {
		case "left": return `← ${label}`;
		case "right": return `${label} →`;
		case "up": return anchor === "right" ? `${label} ↑` : `↑ ${label}`;
		case "down": return anchor === "right" ? `${label} ↓` : `↓ ${label}`;
	}
	return label;
}
function maybeLabelArrow(labelArrow = "auto") {
	return isNoneish(labelArrow) ? false : typeof labelArrow === "boolean" ? labelArrow : keyword(labelArrow, "labelArrow", [
		"auto",
		"up",
		"right",
		"down",
		"left"
	]);
}
function hasTemporalDomain(scale) {
	return isTemporal(scale.domain());
}
// node_modules/@observablehq/plot/src/legends/swatches.js
function maybeScale(scale, key) {
	if (key == null) return key;
	const s = scale(key);
	if (!s) throw new Error(`scale not found: ${key}`);
	return s;
}
function legendSwatches(color, { opacity, ...options } = {}) {
	if (!isOrdinalScale(color) && !isThresholdScale(color)) throw new Error(`swatches legend requires ordinal or threshold color scale (not ${color.type})`);
	return legendItems(color, options, (selection, scale, width, height) => selection.append("svg").attr("width", width).attr("height", height).attr("fill", scale.scale).attr("fill-opacity", maybeNumberChannel(opacity)[1]).append("rect").attr("width", "100%").attr("height", "100%"));
}
function legendSymbols(symbol, { fill = symbol.hint?.fill !== void 0 ? symbol.hint.fill : "none", fillOpacity = 1, stroke = symbol.hint?.stroke !== void 0 ? symbol.hint.stroke : isNoneish(fill) ? "currentColor" : "none", strokeOpacity = 1, strokeWidth = 1.5, r = 4.5, ...options } = {}, scale) {
	const [vf, cf] = maybeColorChannel(fill);
	const [vs, cs] = maybeColorChannel(stroke);
	const sf = maybeScale(scale, vf);
	const ss = maybeScale(scale, vs);
	const size = r * r * Math.PI;
	fillOpacity = maybeNumberChannel(fillOpacity)[1];
	strokeOpacity = maybeNumberChannel(strokeOpacity)[1];
	strokeWidth = maybeNumberChannel(strokeWidth)[1];
	return legendItems(symbol, options, (selection, scale, width, height) => selection.append("svg").attr("viewBox", "-8 -8 16 16").attr("width", width).attr("height", height).attr("fill", vf === "color" ? (d) => sf.scale(d) : cf).attr("fill-opacity", fillOpacity).attr("stroke", vs === "color" ? (d) => ss.scale(d) : cs).attr("stroke-opacity", strokeOpacity).attr("stroke-width", strokeWidth).append("path").attr("d", (d) => {
		const p = pathRound();
		symbol.scale(d).draw(p, size);
		return p;
	}));
}
function legendItems(scale, options = {}, swatch) {
	let { columns, tickFormat, fontVariant = inferFontVariant$2(scale), swatchSize = 15, swatchWidth = swatchSize, swatchHeight = swatchSize, marginLeft = 0, className, style, width } = options;
	const context = createContext(options);
	className = maybeClassName(className);
	tickFormat = inferTickFormat(scale.scale, scale.domain, void 0, tickFormat);
	const swatches = create("div", context).attr("class", `${className}-swatches ${className}-swatches-${columns != null ? "columns" : "wrap"}`);
	let extraStyle;
	if (columns != null) {
		extraStyle = `:where(.${className}-swatches-columns .${className}-swatch) {
  display: flex;
  align-items: center;
  break-inside: avoid;
  padding-bottom: 1px;
}
:where(.${className}-swatches-columns .${className}-swatch::before) {
  flex-shrink: 0;
}
:where(.${className}-swatches-columns .${className}-swatch-label) {
  white-space: nowrap;
  overflow: hidden;
  text-overflow: ellipsis;
}`;
		swatches.style("columns", columns).selectAll().data(scale.domain).enter().append("div").attr("class", `${className}-swatch`).call(swatch, scale, swatchWidth, swatchHeight).call((item) => item.append("div").attr("class", `${className}-swatch-label`).attr("title", tickFormat).text(tickFormat));
	} else {
		extraStyle = `:where(.${className}-swatches-wrap) {
  display: flex;
  align-items: center;
  min-height: 33px;
  flex-wrap: wrap;
}
:where(.${className}-swatches-wrap .${className}-swatch) {
  display: inline-flex;
  align-items: center;
  margin-right: 1em;
}`;
		swatches.selectAll().data(scale.domain).enter().append("span").attr("class", `${className}-swatch`).call(swatch, scale, swatchWidth, swatchHeight).append(function() {
			return this.ownerDocument.createTextNode(tickFormat.apply(this, arguments));
		});
	}
	return swatches.call((div) => div.insert("style", "*").text(`:where(.${className}-swatches) {
  font-family: system-ui, sans-serif;
  font-size: 10px;
  margin-bottom: 0.5em;
}
:where(.${className}-swatch > svg) {
  margin-right: 0.5em;
  overflow: visible;
}
${extraStyle}`)).style("margin-left", marginLeft ? `${+marginLeft}px` : null).style("width", width === void 0 ? null : `${+width}px`).style("font-variant", impliedString(fontVariant, "normal")).call(applyInlineStyles, style).node();
}
// node_modules/@observablehq/plot/src/legends.js
var legendRegistry = /* @__PURE__ */ new Map([
	["symbol", legendSymbols],
	["color", legendColor],
	["opacity", legendOpacity]
]);
function exposeLegends(scales, context, defaults = {}) {
	return (key, options) => {
		if (!legendRegistry.has(key)) throw new Error(`unknown legend type: ${key}`);
		if (!(key in scales)) return;
		return legendRegistry.get(key)(scales[key], legendOptions(context, defaults[key], options), (key) => scales[key]);
	};
}
function legendOptions({ className, ...context }, { label, ticks, tickFormat } = {}, options) {
	return inherit(options, {
		className,
		...context
	}, {
		label,
		ticks,
		tickFormat
	});
}
function legendColor(color, { legend = true, ...options }) {
	if (legend === true) legend = color.type === "ordinal" ? "swatches" : "ramp";
	if (color.domain === void 0) return;
	switch (`${legend}`.toLowerCase()) {
		case "swatches": return legendSwatches(color, options);
		case "ramp": return legendRamp(color, options);
		default: throw new Error(`unknown legend type: ${legend}`);
	}
}
function legendOpacity({ type, interpolate, ...scale }, { legend = true, color = rgb$1(0, 0, 0), ...options }) {
	if (!interpolate) throw new Error(`${type} opacity scales are not supported`);
	if (legend === true) legend = "ramp";
	if (`${legend}`.toLowerCase() !== "ramp") throw new Error(`${legend} opacity legends are not supported`);
	return legendColor({
		type,
		...scale,
		interpolate: interpolateOpacity(color)
	}, {
		legend,
		...options
	});
}
function interpolateOpacity(color) {
	const { r, g, b } = rgb$1(color) || rgb$1(0, 0, 0);
	return (t) => `rgba(${r},${g},${b},${t})`;
}
function createLegends(scales, context, options) {
	const legends = [];
	for (const [key, value] of legendRegistry) {
		const o = options[key];
		if (o?.legend && key in scales) {
			const legend = value(scales[key], legendOptions(context, scales[key], o), (key) => scales[key]);
			if (legend != null) legends.push(legend);
		}
	}
	return legends;
}
// node_modules/@observablehq/plot/src/transforms/identity.js
function maybeIdentityY(options = {}, k = "y") {
	return hasY(options) ? options : {
		...options,
		[k]: identity$1
	};
}
// node_modules/@observablehq/plot/src/transforms/exclusiveFacets.js
function exclusiveFacets(data, facets) {
	if (facets.length === 1) return {
		data,
		facets
	};
	const n = lengthof(data);
	const O = new Uint8Array(n);
	let overlaps = 0;
	for (const facet of facets) for (const i of facet) {
		if (O[i]) ++overlaps;
		O[i] = 1;
	}
	if (overlaps === 0) return {
		data,
		facets
	};
	data = slice(data);
	const R = data[reindex] = new Uint32Array(n + overlaps);
	facets = facets.map((facet) => slice(facet, Uint32Array));
	let j = n;
	O.fill(0);
	for (const facet of facets) for (let k = 0, m = facet.length; k < m; ++k) {
		const i = facet[k];
		if (O[i]) facet[k] = j, data[j] = data[i], R[j] = i, ++j;
		else R[i] = i;
		O[i] = 1;
	}
	return {
		data,
		facets
	};
}
// node_modules/@observablehq/plot/src/transforms/stack.js
function stackY(stackOptions = {}, options = {}) {
	if (arguments.length === 1) [stackOptions, options] = mergeOptions$1(stackOptions);
	const { x1, x = x1, y, ...rest } = options;
	const [transform, X, y1, y2] = stack(x, y, "x", "y", stackOptions, rest);
	return {
		...transform,
		x1,
		x: X,
		y1,
		y2,
		y: mid(y1, y2)
	};
}
function maybeStackY({ y, y1, y2, ...options } = {}) {
	options = withTip(options, "x");
	if (y1 === void 0 && y2 === void 0) return stackY({
		y,
		...options
	});
	[y1, y2] = maybeZero(y, y1, y2);
	return {
		...options,
		y1,
		y2
	};
}
function mergeOptions$1(options) {
	const { offset, order, reverse, ...rest } = options;
	return [{
		offset,
		order,
		reverse
	}, rest];
}
var lengthy = { length: true };
function stack(x, y = one, kx, ky, { offset, order, reverse }, options) {
	if (y === null) throw new Error(`stack requires ${ky}`);
	const z = maybeZ(options);
	const [X, setX] = maybeColumn(x);
	const [Y1, setY1] = column$1(y);
	const [Y2, setY2] = column$1(y);
	Y1.hint = Y2.hint = lengthy;
	offset = maybeOffset(offset);
	order = maybeOrder(order, offset, ky);
	return [
		basic(options, (data, facets, plotOptions) => {
			({data, facets} = exclusiveFacets(data, facets));
			const X = x == null ? void 0 : setX(maybeApplyInterval(valueof(data, x), plotOptions?.[kx]));
			const Y = valueof(data, y, Float64Array);
			const Z = valueof(data, z);
			const compare = order && order(data, X, Y, Z);
			const n = lengthof(data);
			const Y1 = setY1(new Float64Array(n));
			const Y2 = setY2(new Float64Array(n));
			const facetstacks = [];
			for (const facet of facets) {
				const stacks = X ? Array.from(group(facet, (i) => X[i]).values()) : [facet];
				if (compare) for (const stack of stacks) stack.sort(compare);
				for (const stack of stacks) {
					let yn = 0;
					let yp = 0;
					if (reverse) stack.reverse();
					for (const i of stack) {
						const y = Y[i];
						if (y < 0) yn = Y2[i] = (Y1[i] = yn) + y;
						else if (y > 0) yp = Y2[i] = (Y1[i] = yp) + y;
						else Y2[i] = Y1[i] = yp;
					}
				}
				facetstacks.push(stacks);
			}
			if (offset) offset(facetstacks, Y1, Y2, Z);
			return {
				data,
				facets
			};
		}),
		X,
		Y1,
		Y2
	];
}
function maybeOffset(offset) {
	if (offset == null) return;
	if (typeof offset === "function") return offset;
	switch (`${offset}`.toLowerCase()) {
		case "expand":
		case "normalize": return offsetExpand;
		case "center":
		case "silhouette": return offsetCenter;
		case "wiggle": return offsetWiggle;
	}
	throw new Error(`unknown offset: ${offset}`);
}
function extent(stack, Y2) {
	let min = 0, max = 0;
	for (const i of stack) {
		const y = Y2[i];
		if (y < min) min = y;
		if (y > max) max = y;
	}
	return [min, max];
}
function offsetExpand(facetstacks, Y1, Y2) {
	for (const stacks of facetstacks) for (const stack of stacks) {
		const [yn, yp] = extent(stack, Y2);
		for (const i of stack) {
			const m = 1 / (yp - yn || 1);
			Y1[i] = m * (Y1[i] - yn);
			Y2[i] = m * (Y2[i] - yn);
		}
	}
}
function offsetCenter(facetstacks, Y1, Y2) {
	for (const stacks of facetstacks) {
		for (const stack of stacks) {
			const [yn, yp] = extent(stack, Y2);
			for (const i of stack) {
				const m = (yp + yn) / 2;
				Y1[i] -= m;
				Y2[i] -= m;
			}
		}
		offsetZero(stacks, Y1, Y2);
	}
	offsetCenterFacets(facetstacks, Y1, Y2);
}
function offsetWiggle(facetstacks, Y1, Y2, Z) {
	for (const stacks of facetstacks) {
		const prev = new InternMap();
		let y = 0;
		for (const stack of stacks) {
			let j = -1;
			const Fi = stack.map((i) => Math.abs(Y2[i] - Y1[i]));
			const Df = stack.map((i) => {
				j = Z ? Z[i] : ++j;
				const value = Y2[i] - Y1[i];
				const diff = prev.has(j) ? value - prev.get(j) : 0;
				prev.set(j, value);
				return diff;
			});
			const Cf1 = [0, ...cumsum(Df)];
			for (const i of stack) {
				Y1[i] += y;
				Y2[i] += y;
			}
			const s1 = sum(Fi);
			if (s1) y -= sum(Fi, (d, i) => (Df[i] / 2 + Cf1[i]) * d) / s1;
		}
		offsetZero(stacks, Y1, Y2);
	}
	offsetCenterFacets(facetstacks, Y1, Y2);
}
function offsetZero(stacks, Y1, Y2) {
	const m = min$1(stacks, (stack) => min$1(stack, (i) => Y1[i]));
	for (const stack of stacks) for (const i of stack) {
		Y1[i] -= m;
		Y2[i] -= m;
	}
}
function offsetCenterFacets(facetstacks, Y1, Y2) {
	const n = facetstacks.length;
	if (n === 1) return;
	const facets = facetstacks.map((stacks) => stacks.flat());
	const m = facets.map((I) => (min$1(I, (i) => Y1[i]) + max(I, (i) => Y2[i])) / 2);
	const m0 = min$1(m);
	for (let j = 0; j < n; j++) {
		const p = m0 - m[j];
		for (const i of facets[j]) {
			Y1[i] += p;
			Y2[i] += p;
		}
	}
}
function maybeOrder(order, offset, ky) {
	if (order === void 0 && offset === offsetWiggle) return orderInsideOut(ascendingDefined);
	if (order == null) return;
	if (typeof order === "string") {
		const negate = order.startsWith("-");
		const compare = negate ? descendingDefined : ascendingDefined;
		switch ((negate ? order.slice(1) : order).toLowerCase()) {
			case "value":
			case ky: return orderY(compare);
			case "z": return orderZ(compare);
			case "sum": return orderSum(compare);
			case "appearance": return orderAppearance(compare);
			case "inside-out": return orderInsideOut(compare);
		}
		return orderAccessor(field(order));
	}
	if (typeof order === "function") return (order.length === 1 ? orderAccessor : orderComparator)(order);
	if (isArray(order)) return orderGiven(order);
	throw new Error(`invalid order: ${order}`);
}
function orderY(compare) {
	return (data, X, Y) => (i, j) => compare(Y[i], Y[j]);
}
function orderZ(compare) {
	return (data, X, Y, Z) => (i, j) => compare(Z[i], Z[j]);
}
function orderSum(compare) {
	return orderZDomain(compare, (data, X, Y, Z) => groupSort(range(data), (I) => sum(I, (i) => Y[i]), (i) => Z[i]));
}
function orderAppearance(compare) {
	return orderZDomain(compare, (data, X, Y, Z) => groupSort(range(data), (I) => X[greatest(I, (i) => Y[i])], (i) => Z[i]));
}
function orderInsideOut(compare) {
	return orderZDomain(compare, (data, X, Y, Z) => {
		const I = range(data);
		const K = groupSort(I, (I) => X[greatest(I, (i) => Y[i])], (i) => Z[i]);
		const sums = rollup(I, (I) => sum(I, (i) => Y[i]), (i) => Z[i]);
		const Kp = [], Kn = [];
		let s = 0;
		for (const k of K) if (s < 0) {
			s += sums.get(k);
			Kp.push(k);
		} else {
			s -= sums.get(k);
			Kn.push(k);
		}
		return Kn.reverse().concat(Kp);
	});
}
function orderAccessor(f) {
	return (data) => {
		const O = valueof(data, f);
		return (i, j) => ascendingDefined(O[i], O[j]);
	};
}
function orderComparator(f) {
	return (data) => {
		return isArray(data) ? (i, j) => f(data[i], data[j]) : (i, j) => f(data.get(i), data.get(j));
	};
}
function orderGiven(domain) {
	return orderZDomain(ascendingDefined, () => domain);
}
function orderZDomain(compare, domain) {
	return (data, X, Y, Z) => {
		if (!Z) throw new Error("missing channel: z");
		const map = new InternMap(domain(data, X, Y, Z).map((d, i) => [d, i]));
		return (i, j) => compare(map.get(Z[i]), map.get(Z[j]));
	};
}
// node_modules/@observablehq/plot/src/marks/rect.js
function rectInsets(mark, { inset = 0, insetTop = inset, insetRight = inset, insetBottom = inset, insetLeft = inset } = {}) {
	mark.insetTop = number$2(insetTop);
	mark.insetRight = number$2(insetRight);
	mark.insetBottom = number$2(insetBottom);
	mark.insetLeft = number$2(insetLeft);
}
function rectRadii(mark, { r, rx, ry, rx1 = r, ry1 = r, rx2 = r, ry2 = r, rx1y1 = rx1 !== void 0 ? +rx1 : ry1 !== void 0 ? +ry1 : 0, rx1y2 = rx1 !== void 0 ? +rx1 : ry2 !== void 0 ? +ry2 : 0, rx2y1 = rx2 !== void 0 ? +rx2 : ry1 !== void 0 ? +ry1 : 0, rx2y2 = rx2 !== void 0 ? +rx2 : ry2 !== void 0 ? +ry2 : 0 } = {}) {
	if (rx1y1 || rx1y2 || rx2y1 || rx2y2) {
		mark.rx1y1 = rx1y1;
		mark.rx1y2 = rx1y2;
		mark.rx2y1 = rx2y1;
		mark.rx2y2 = rx2y2;
	} else {
		mark.rx = impliedString(rx, "auto");
		mark.ry = impliedString(ry, "auto");
	}
}
function applyRoundedRect(selection, X1, Y1, X2, Y2, mark) {
	const { rx1y1: r11, rx1y2: r12, rx2y1: r21, rx2y2: r22 } = mark;
	if (typeof X1 !== "function") X1 = constant(X1);
	if (typeof Y1 !== "function") Y1 = constant(Y1);
	if (typeof X2 !== "function") X2 = constant(X2);
	if (typeof Y2 !== "function") Y2 = constant(Y2);
	const rx = Math.max(Math.abs(r11 + r21), Math.abs(r12 + r22));
	const ry = Math.max(Math.abs(r11 + r12), Math.abs(r21 + r22));
	selection.attr("d", (i) => {
		const x1 = X1(i);
		const y1 = Y1(i);
		const x2 = X2(i);
		const y2 = Y2(i);
		const ix = x1 > x2;
		const iy = y1 > y2;
		const l = ix ? x2 : x1;
		const r = ix ? x1 : x2;
		const t = iy ? y2 : y1;
		const b = iy ? y1 : y2;
		const k = Math.min(1, (r - l) / rx, (b - t) / ry);
		const tl = k * (ix ? iy ? r22 : r21 : iy ? r12 : r11);
		const tr = k * (ix ? iy ? r12 : r11 : iy ? r22 : r21);
		const br = k * (ix ? iy ? r11 : r12 : iy ? r21 : r22);
		const bl = k * (ix ? iy ? r21 : r22 : iy ? r11 : r12);
		return `M${l},${t + biasY(tl, bl)}A${tl},${tl} 0 0 ${tl < 0 ? 0 : 1} ${l + biasX(tl, bl)},${t}H${r - biasX(tr, br)}A${tr},${tr} 0 0 ${tr < 0 ? 0 : 1} ${r},${t + biasY(tr, br)}V${b - biasY(br, tr)}A${br},${br} 0 0 ${br < 0 ? 0 : 1} ${r - biasX(br, tr)},${b}H${l + biasX(bl, tl)}A${bl},${bl} 0 0 ${bl < 0 ? 0 : 1} ${l},${b - biasY(bl, tl)}Z`;
	});
}
/**
* If the opposing corner has a negative radius r2, if this corner has a
* negative radius r1, this corner’s “wing” will extend horizontally rather than
* vertically.
*/
function biasX(r1, r2) {
	return r2 < 0 ? r1 : Math.abs(r1);
}
/**
* If the opposing corner has a negative radius r2, if this corner has a
* negative radius r1, this corner’s “wing” will extend horizontally rather than
* vertically.
*/
function biasY(r1, r2) {
	return r2 < 0 ? Math.abs(r1) : r1;
}
// node_modules/@observablehq/plot/src/marks/frame.js
var defaults$5 = {
	ariaLabel: "frame",
	fill: "none",
	stroke: "currentColor",
	clip: false
};
var lineDefaults = {
	ariaLabel: "frame",
	fill: null,
	stroke: "currentColor",
	strokeLinecap: "square",
	clip: false
};
var Frame = class extends Mark {
	constructor(options = {}) {
		const { anchor = null } = options;
		super(singleton, void 0, options, anchor == null ? defaults$5 : lineDefaults);
		this.anchor = maybeKeyword(anchor, "anchor", [
			"top",
			"right",
			"bottom",
			"left"
		]);
		rectInsets(this, options);
		if (!anchor) rectRadii(this, options);
	}
	render(index, scales, channels, dimensions, context) {
		const { marginTop, marginRight, marginBottom, marginLeft, width, height } = dimensions;
		const { anchor, insetTop, insetRight, insetBottom, insetLeft } = this;
		const { rx, ry, rx1y1, rx1y2, rx2y1, rx2y2 } = this;
		const x1 = marginLeft + insetLeft;
		const x2 = width - marginRight - insetRight;
		const y1 = marginTop + insetTop;
		const y2 = height - marginBottom - insetBottom;
		return create(anchor ? "svg:line" : rx1y1 || rx1y2 || rx2y1 || rx2y2 ? "svg:path" : "svg:rect", context).datum(0).call(applyIndirectStyles, this, dimensions, context).call(applyDirectStyles, this).call(applyChannelStyles, this, channels).call(applyTransform, this, {}).call(anchor === "left" ? (line) => line.attr("x1", x1).attr("x2", x1).attr("y1", y1).attr("y2", y2) : anchor === "right" ? (line) => line.attr("x1", x2).attr("x2", x2).attr("y1", y1).attr("y2", y2) : anchor === "top" ? (line) => line.attr("x1", x1).attr("x2", x2).attr("y1", y1).attr("y2", y1) : anchor === "bottom" ? (line) => line.attr("x1", x1).attr("x2", x2).attr("y1", y2).attr("y2", y2) : rx1y1 || rx1y2 || rx2y1 || rx2y2 ? (path) => path.call(applyRoundedRect, x1, y1, x2, y2, this) : (rect) => rect.attr("x", x1).attr("y", y1).attr("width", x2 - x1).attr("height", y2 - y1).attr("rx", rx).attr("ry", ry)).node();
	}
};
function frame(options) {
	return new Frame(options);
}
// node_modules/@observablehq/plot/src/marks/tip.js
var defaults$4 = {
	ariaLabel: "tip",
	fill: "var(--plot-background)",
	stroke: "currentColor"
};
var ignoreChannels = /* @__PURE__ */ new Set([
	"geometry",
	"href",
	"src",
	"ariaLabel",
	"scales"
]);
var Tip = class extends Mark {
	constructor(data, options = {}) {
		if (options.tip) options = {
			...options,
			tip: false
		};
		if (options.title === void 0 && isIterable(data) && isTextual(data)) options = {
			...options,
			title: identity$1
		};
		const { x, y, x1, x2, y1, y2, anchor, preferredAnchor = "bottom", monospace, fontFamily = monospace ? "ui-monospace, monospace" : void 0, fontSize, fontStyle, fontVariant, fontWeight, lineHeight = 1, lineWidth = 20, frameAnchor, format, textAnchor = "start", textOverflow, textPadding = 8, title, pointerSize = 12, pathFilter = "drop-shadow(0 3px 4px rgba(0,0,0,0.2))" } = options;
		super(data, {
			x: {
				value: x1 != null && x2 != null ? null : x,
				scale: "x",
				optional: true
			},
			y: {
				value: y1 != null && y2 != null ? null : y,
				scale: "y",
				optional: true
			},
			x1: {
				value: x1,
				scale: "x",
				optional: x2 == null
			},
			y1: {
				value: y1,
				scale: "y",
				optional: y2 == null
			},
			x2: {
				value: x2,
				scale: "x",
				optional: x1 == null
			},
			y2: {
				value: y2,
				scale: "y",
				optional: y1 == null
			},
			title: {
				value: title,
				optional: true
			}
		}, options, defaults$4);
		this.anchor = maybeAnchor$1(anchor, "anchor");
		this.preferredAnchor = maybeAnchor$1(preferredAnchor, "preferredAnchor");
		this.frameAnchor = maybeFrameAnchor(frameAnchor);
		this.textAnchor = impliedString(textAnchor, "middle");
		this.textPadding = +textPadding;
		this.pointerSize = +pointerSize;
		this.pathFilter = string(pathFilter);
		this.lineHeight = +lineHeight;
		this.lineWidth = +lineWidth;
		this.textOverflow = maybeTextOverflow(textOverflow);
		this.monospace = !!monospace;
		this.fontFamily = string(fontFamily);
		this.fontSize = number$2(fontSize);
		this.fontStyle = string(fontStyle);
		this.fontVariant = string(fontVariant);
		this.fontWeight = string(fontWeight);
		for (const key in defaults$4) if (key in this.channels) this[key] = defaults$4[key];
		this.splitLines = splitter(this);
		this.clipLine = clipper(this);
		this.format = typeof format === "string" || typeof format === "function" ? { title: format } : { ...format };
	}
	render(index, scales, values, dimensions, context) {
		const mark = this;
		const { x, y, fx, fy } = scales;
		const { ownerSVGElement: svg, document } = context;
		const { anchor, monospace, lineHeight, lineWidth } = this;
		const { textPadding: r, pointerSize: m, pathFilter } = this;
		const { marginTop, marginLeft } = dimensions;
		const { x1: X1, y1: Y1, x2: X2, y2: Y2, x: X = X1 ?? X2, y: Y = Y1 ?? Y2 } = values;
		const ox = fx ? fx(index.fx) - marginLeft : 0;
		const oy = fy ? fy(index.fy) - marginTop : 0;
		const [cx, cy] = applyFrameAnchor(this, dimensions);
		const px = anchorX$1(values, cx);
		const py = anchorY$1(values, cy);
		const widthof = monospace ? monospaceWidth : defaultWidth;
		const ee = widthof("…");
		let sources, format;
		if ("title" in values) {
			sources = getSourceChannels.call(this, { title: values.channels.title }, scales);
			format = formatTitle;
		} else {
			sources = getSourceChannels.call(this, values.channels, scales);
			format = formatChannels;
		}
		const g = create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyIndirectTextStyles, this).call(applyTransform, this, {
			x: X && x,
			y: Y && y
		}).call((g) => g.selectAll().data(index).enter().append("g").attr("transform", (i) => `translate(${Math.round(px(i))},${Math.round(py(i))})`).call(applyDirectStyles, this).call((g) => g.append("path").attr("filter", pathFilter)).call((g) => g.append("text").each(function(i) {
			const that = select(this);
			this.setAttribute("fill", "currentColor");
			this.setAttribute("fill-opacity", 1);
			this.setAttribute("stroke", "none");
			const lines = format.call(mark, i, index, sources, scales, values);
			if (typeof lines === "string") for (const line of mark.splitLines(lines)) renderLine(that, { value: mark.clipLine(line) });
			else {
				const labels = /* @__PURE__ */ new Set();
				for (const line of lines) {
					const { label = "" } = line;
					if (label && labels.has(label)) continue;
					else labels.add(label);
					renderLine(that, line);
				}
			}
		})));
		function renderLine(selection, { label, value, color, opacity }) {
			label ??= "", value ??= "";
			const swatch = color != null || opacity != null;
			let title;
			let w = lineWidth * 100;
			const [j] = cut(label, w, widthof, ee);
			if (j >= 0) {
				label = label.slice(0, j).trimEnd() + "…";
				title = value.trim();
				value = "";
			} else {
				if (label || !value && !swatch) value = " " + value;
				const [k] = cut(value, w - widthof(label), widthof, ee);
				if (k >= 0) {
					title = value.trim();
					value = value.slice(0, k).trimEnd() + "…";
				}
			}
			const line = selection.append("tspan").attr("x", 0).attr("dy", `${lineHeight}em`).text("​");
			if (label) line.append("tspan").attr("font-weight", "bold").text(label);
			if (value) line.append(() => document.createTextNode(value));
			if (swatch) line.append("tspan").text(" ■").attr("fill", color).attr("fill-opacity", opacity).style("user-select", "none");
			if (title) line.append("title").text(title);
		}
		function postrender() {
			const { width, height } = dimensions.facet ?? dimensions;
			g.selectChildren().each(function(i) {
				let { x: tx, width: w, height: h } = this.getBBox();
				w = Math.round(w), h = Math.round(h);
				let a = anchor;
				if (a === void 0) {
					const x = px(i) + ox;
					const y = py(i) + oy;
					const fitLeft = x + w + m + r * 2 < width;
					const fitRight = x - w - m - r * 2 > 0;
					const fitTop = y + h + m + r * 2 < height;
					const fitBottom = y - h - m - r * 2 > 0;
					a = fitLeft && fitRight ? fitTop && fitBottom ? mark.preferredAnchor : fitBottom ? "bottom" : "top" : fitTop && fitBottom ? fitLeft ? "left" : "right" : (fitLeft || fitRight) && (fitTop || fitBottom) ? `${fitBottom ? "bottom" : "top"}-${fitLeft ? "left" : "right"}` : mark.preferredAnchor;
				}
				const path = this.firstChild;
				const text = this.lastChild;
				path.setAttribute("d", getPath(a, m, r, w, h));
				if (tx) for (const t of text.childNodes) t.setAttribute("x", -tx);
				text.setAttribute("y", `${+getLineOffset(a, text.childNodes.length, lineHeight).toFixed(6)}em`);
				text.setAttribute("transform", `translate(${getTextTranslate(a, m, r, w, h)})`);
			});
			g.attr("visibility", null);
		}
		if (index.length) {
			g.attr("visibility", "hidden");
			if (svg.isConnected) Promise.resolve().then(postrender);
			else if (typeof requestAnimationFrame !== "undefined") requestAnimationFrame(postrender);
		}
		return g.node();
	}
};
function tip(data, { x, y, ...options } = {}) {
	if (options.frameAnchor === void 0) [x, y] = maybeTuple(x, y);
	return new Tip(data, {
		...options,
		x,
		y
	});
}
function getLineOffset(anchor, length, lineHeight) {
	return /^top(?:-|$)/.test(anchor) ? .94 - lineHeight : -.29 - length * lineHeight;
}
function getTextTranslate(anchor, m, r, width, height) {
	switch (anchor) {
		case "middle": return [-width / 2, height / 2];
		case "top-left": return [r, m + r];
		case "top": return [-width / 2, m / 2 + r];
		case "top-right": return [-width - r, m + r];
		case "right": return [-m / 2 - width - r, height / 2];
		case "bottom-left": return [r, -m - r];
		case "bottom": return [-width / 2, -m / 2 - r];
		case "bottom-right": return [-width - r, -m - r];
		case "left": return [r + m / 2, height / 2];
	}
}
function getPath(anchor, m, r, width, height) {
	const w = width + r * 2;
	const h = height + r * 2;
	switch (anchor) {
		case "middle": return `M${-w / 2},${-h / 2}h${w}v${h}h${-w}z`;
		case "top-left": return `M0,0l${m},${m}h${w - m}v${h}h${-w}z`;
		case "top": return `M0,0l${m / 2},${m / 2}h${(w - m) / 2}v${h}h${-w}v${-h}h${(w - m) / 2}z`;
		case "top-right": return `M0,0l${-m},${m}h${m - w}v${h}h${w}z`;
		case "right": return `M0,0l${-m / 2},${-m / 2}v${m / 2 - h / 2}h${-w}v${h}h${w}v${m / 2 - h / 2}z`;
		case "bottom-left": return `M0,0l${m},${-m}h${w - m}v${-h}h${-w}z`;
		case "bottom": return `M0,0l${m / 2},${-m / 2}h${(w - m) / 2}v${-h}h${-w}v${h}h${(w - m) / 2}z`;
		case "bottom-right": return `M0,0l${-m},${-m}h${m - w}v${-h}h${w}z`;
		case "left": return `M0,0l${m / 2},${-m / 2}v${m / 2 - h / 2}h${w}v${h}h${-w}v${m / 2 - h / 2}z`;
	}
}
function getSourceChannels(channels, scales) {
	const sources = {};
	let format = this.format;
	format = maybeExpandPairedFormat(format, channels, "x");
	format = maybeExpandPairedFormat(format, channels, "y");
	this.format = format;
	for (const key in format) {
		const value = format[key];
		if (value === null || value === false) continue;
		else if (key === "fx" || key === "fy") sources[key] = true;
		else {
			const source = getSource(channels, key);
			if (source) sources[key] = source;
		}
	}
	for (const key in channels) {
		if (key in sources || key in format || ignoreChannels.has(key)) continue;
		if ((key === "x" || key === "y") && channels.geometry) continue;
		const source = getSource(channels, key);
		if (source) {
			if (source.scale == null && source.defaultScale === "color") continue;
			sources[key] = source;
		}
	}
	if (this.facet) {
		if (scales.fx && !("fx" in format)) sources.fx = true;
		if (scales.fy && !("fy" in format)) sources.fy = true;
	}
	for (const key in sources) {
		const format = this.format[key];
		if (typeof format === "string") {
			const value = sources[key]?.value ?? scales[key]?.domain() ?? [];
			this.format[key] = (isTemporal(value) ? utcFormat : format$1)(format);
		} else if (format === void 0 || format === true) {
			const scale = scales[key];
			this.format[key] = scale?.bandwidth ? inferTickFormat(scale, scale.domain()) : formatDefault;
		}
	}
	return sources;
}
function maybeExpandPairedFormat(format, channels, key) {
	if (!(key in format)) return format;
	const key1 = `${key}1`;
	const key2 = `${key}2`;
	if ((key1 in format || !(key1 in channels)) && (key2 in format || !(key2 in channels))) return format;
	const entries = Object.entries(format);
	const value = format[key];
	entries.splice(entries.findIndex(([name]) => name === key) + 1, 0, [key1, value], [key2, value]);
	return Object.fromEntries(entries);
}
function formatTitle(i, index, { title }) {
	return this.format.title(title.value[i], i);
}
function* formatChannels(i, index, channels, scales, values) {
	for (const key in channels) {
		if (key === "fx" || key === "fy") {
			yield {
				label: formatLabel(scales, channels, key),
				value: this.format[key](index[key], i)
			};
			continue;
		}
		if (key === "x1" && "x2" in channels) continue;
		if (key === "y1" && "y2" in channels) continue;
		const channel = channels[key];
		if (key === "x2" && "x1" in channels) yield {
			label: formatPairLabel(scales, channels, "x"),
			value: formatPair(this.format.x2, channels.x1, channel, i)
		};
		else if (key === "y2" && "y1" in channels) yield {
			label: formatPairLabel(scales, channels, "y"),
			value: formatPair(this.format.y2, channels.y1, channel, i)
		};
		else {
			const value = channel.value[i];
			const scale = channel.scale;
			if (!defined(value) && scale == null) continue;
			yield {
				label: formatLabel(scales, channels, key),
				value: this.format[key](value, i),
				color: scale === "color" ? values[key][i] : null,
				opacity: scale === "opacity" ? values[key][i] : null
			};
		}
	}
}
function formatPair(formatValue, c1, c2, i) {
	return c2.hint?.length ? `${formatValue(c2.value[i] - c1.value[i], i)}` : `${formatValue(c1.value[i], i)}–${formatValue(c2.value[i], i)}`;
}
function formatPairLabel(scales, channels, key) {
	const l1 = formatLabel(scales, channels, `${key}1`, key);
	const l2 = formatLabel(scales, channels, `${key}2`, key);
	return l1 === l2 ? l1 : `${l1}–${l2}`;
}
function formatLabel(scales, channels, key, defaultLabel = key) {
	const channel = channels[key];
	const scale = scales[channel?.scale ?? key];
	return String(scale?.label ?? channel?.label ?? defaultLabel);
}
// node_modules/@observablehq/plot/src/plot.js
function plot(options = {}) {
	const { facet, style, title, subtitle, caption, ariaLabel, ariaDescription } = options;
	const className = maybeClassName(options.className);
	const marks = options.marks === void 0 ? [] : flatMarks(options.marks);
	marks.push(...inferTips(marks));
	const topFacetState = maybeTopFacet(facet, options);
	const facetStateByMark = /* @__PURE__ */ new Map();
	for (const mark of marks) {
		const facetState = maybeMarkFacet(mark, topFacetState, options);
		if (facetState) facetStateByMark.set(mark, facetState);
	}
	const channelsByScale = /* @__PURE__ */ new Map();
	if (topFacetState) addScaleChannels(channelsByScale, [topFacetState], options);
	addScaleChannels(channelsByScale, facetStateByMark, options);
	const axes = flatMarks(inferAxes(marks, channelsByScale, options));
	for (const mark of axes) {
		const facetState = maybeMarkFacet(mark, topFacetState, options);
		if (facetState) facetStateByMark.set(mark, facetState);
	}
	marks.unshift(...axes);
	let facets = createFacets(channelsByScale, options);
	if (facets !== void 0) {
		const topFacetsIndex = topFacetState ? facetFilter(facets, topFacetState) : void 0;
		for (const mark of marks) {
			if (mark.facet === null || mark.facet === "super") continue;
			const facetState = facetStateByMark.get(mark);
			if (facetState === void 0) continue;
			facetState.facetsIndex = mark.fx != null || mark.fy != null ? facetFilter(facets, facetState) : topFacetsIndex;
		}
		const nonEmpty = /* @__PURE__ */ new Set();
		for (const { facetsIndex } of facetStateByMark.values()) facetsIndex?.forEach((index, i) => {
			if (index?.length > 0) nonEmpty.add(i);
		});
		facets.forEach(0 < nonEmpty.size && nonEmpty.size < facets.length ? (f, i) => f.empty = !nonEmpty.has(i) : (f) => f.empty = false);
		for (const mark of marks) if (mark.facet === "exclude") {
			const facetState = facetStateByMark.get(mark);
			if (facetState !== void 0) facetState.facetsIndex = facetExclude(facetState.facetsIndex);
		}
	}
	for (const key of registry.keys()) if (isScaleOptions(options[key]) && key !== "fx" && key !== "fy") channelsByScale.set(key, []);
	const stateByMark = /* @__PURE__ */ new Map();
	for (const mark of marks) {
		if (stateByMark.has(mark)) throw new Error("duplicate mark; each mark must be unique");
		const { facetsIndex, channels: facetChannels } = facetStateByMark.get(mark) ?? {};
		const { data, facets, channels } = mark.initialize(facetsIndex, facetChannels, options);
		applyScaleTransforms(channels, options);
		stateByMark.set(mark, {
			data,
			facets,
			channels
		});
	}
	const scaleDescriptors = createScales(addScaleChannels(channelsByScale, stateByMark, options), options);
	const dimensions = createDimensions(scaleDescriptors, marks, options);
	autoScaleRange(scaleDescriptors, dimensions);
	const scales = createScaleFunctions(scaleDescriptors);
	const { fx, fy } = scales;
	const subdimensions = fx || fy ? innerDimensions(scaleDescriptors, dimensions) : dimensions;
	const superdimensions = fx || fy ? actualDimensions(scales, dimensions) : dimensions;
	const context = createContext(options);
	const document = context.document;
	const svg = creator("svg").call(document.documentElement);
	let figure = svg;
	context.ownerSVGElement = svg;
	context.className = className;
	context.projection = createProjection(options, subdimensions);
	context.path = function() {
		return index(this.projection ?? xyProjection(scales));
	};
	context.filterFacets = (data, channels) => {
		return facetFilter(facets, {
			channels,
			groups: facetGroups(data, channels)
		});
	};
	context.getMarkState = (mark) => {
		const state = stateByMark.get(mark);
		const facetState = facetStateByMark.get(mark);
		return {
			...state,
			channels: {
				...state.channels,
				...facetState?.channels
			}
		};
	};
	context.dispatchValue = (value) => {
		if (figure.value === value) return;
		figure.value = value;
		figure.dispatchEvent(new context.document.defaultView.Event("input", { bubbles: true }));
	};
	const newByScale = /* @__PURE__ */ new Set();
	for (const [mark, state] of stateByMark) if (mark.initializer != null) {
		const dimensions = mark.facet === "super" ? superdimensions : subdimensions;
		const update = mark.initializer(state.data, state.facets, state.channels, scales, dimensions, context);
		if (update.data !== void 0) state.data = update.data;
		if (update.facets !== void 0) state.facets = update.facets;
		if (update.channels !== void 0) {
			const { fx, fy, ...channels } = update.channels;
			inferChannelScales(channels);
			Object.assign(state.channels, channels);
			for (const channel of Object.values(channels)) {
				const { scale } = channel;
				if (scale != null && !isPosition(registry.get(scale))) {
					applyScaleTransform(channel, options);
					newByScale.add(scale);
				}
			}
			if (fx != null || fy != null) facetStateByMark.set(mark, true);
		}
	}
	if (newByScale.size) {
		const newChannelsByScale = /* @__PURE__ */ new Map();
		addScaleChannels(newChannelsByScale, stateByMark, options, (key) => newByScale.has(key));
		addScaleChannels(channelsByScale, stateByMark, options, (key) => newByScale.has(key));
		const newScaleDescriptors = inheritScaleLabels(createScales(newChannelsByScale, options), scaleDescriptors);
		const { scales: newExposedScales, ...newScales } = createScaleFunctions(newScaleDescriptors);
		Object.assign(scaleDescriptors, newScaleDescriptors);
		Object.assign(scales, newScales);
		Object.assign(scales.scales, newExposedScales);
	}
	let facetDomains, facetTranslate;
	if (facets !== void 0) {
		facetDomains = {
			x: fx?.domain(),
			y: fy?.domain()
		};
		facets = recreateFacets(facets, facetDomains);
		facetTranslate = facetTranslator(fx, fy, dimensions);
	}
	for (const [mark, state] of stateByMark) state.values = mark.scale(state.channels, scales, context);
	const { width, height } = dimensions;
	select(svg).attr("class", className).attr("fill", "currentColor").attr("font-family", "system-ui, sans-serif").attr("font-size", 10).attr("text-anchor", "middle").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`).attr("aria-label", ariaLabel).attr("aria-description", ariaDescription).call((svg) => svg.append("style").text(`:where(.${className}) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.${className} text),
:where(.${className} tspan) {
  white-space: pre;
}`)).call(applyInlineStyles, style);
	for (const mark of marks) {
		const { channels, values, facets: indexes } = stateByMark.get(mark);
		if (facets === void 0 || mark.facet === "super") {
			let index = null;
			if (indexes) {
				index = indexes[0];
				index = mark.filter(index, channels, values);
				if (index.length === 0) continue;
			}
			const node = mark.render(index, scales, values, superdimensions, context);
			if (node == null) continue;
			svg.appendChild(node);
		} else {
			let g;
			for (const f of facets) {
				if (!(mark.facetAnchor?.(facets, facetDomains, f) ?? !f.empty)) continue;
				let index = null;
				if (indexes) {
					const faceted = facetStateByMark.has(mark);
					index = indexes[faceted ? f.i : 0];
					index = mark.filter(index, channels, values);
					if (index.length === 0) continue;
					if (!faceted && index === indexes[0]) index = subarray(index);
					index.fx = f.x, index.fy = f.y, index.fi = f.i;
				}
				const node = mark.render(index, scales, values, subdimensions, context);
				if (node == null) continue;
				(g ??= select(svg).append("g")).append(() => node).datum(f);
				for (const name of [
					"aria-label",
					"aria-description",
					"aria-hidden",
					"transform"
				]) if (node.hasAttribute(name)) {
					g.attr(name, node.getAttribute(name));
					node.removeAttribute(name);
				}
			}
			g?.selectChildren().each(facetTranslate);
		}
	}
	const legends = createLegends(scaleDescriptors, context, options);
	const { figure: figured = title != null || subtitle != null || caption != null || legends.length > 0 } = options;
	if (figured) {
		figure = document.createElement("figure");
		figure.className = `${className}-figure`;
		figure.style.maxWidth = "initial";
		if (title != null) figure.append(createTitleElement(document, title, "h2"));
		if (subtitle != null) figure.append(createTitleElement(document, subtitle, "h3"));
		figure.append(...legends, svg);
		if (caption != null) figure.append(createFigcaption(document, caption));
		if ("value" in svg) figure.value = svg.value, delete svg.value;
	}
	figure.scale = exposeScales(scales.scales);
	figure.legend = exposeLegends(scaleDescriptors, context, options);
	const w = consumeWarnings();
	if (w > 0) select(svg).append("text").attr("x", width).attr("y", 20).attr("dy", "-1em").attr("text-anchor", "end").attr("font-family", "initial").text("⚠️").append("title").text(`${w.toLocaleString("en-US")} warning${w === 1 ? "" : "s"}. Please check the console.`);
	return figure;
}
function createTitleElement(document, contents, tag) {
	if (contents.ownerDocument) return contents;
	const e = document.createElement(tag);
	e.append(contents);
	return e;
}
function createFigcaption(document, caption) {
	const e = document.createElement("figcaption");
	e.append(caption);
	return e;
}
function flatMarks(marks) {
	return marks.flat(Infinity).filter((mark) => mark != null).map(markify);
}
function markify(mark) {
	return typeof mark.render === "function" ? mark : new Render(mark);
}
var Render = class extends Mark {
	constructor(render) {
		if (typeof render !== "function") throw new TypeError("invalid mark; missing render function");
		super();
		this.render = render;
	}
	render() {}
};
function applyScaleTransforms(channels, options) {
	for (const name in channels) applyScaleTransform(channels[name], options);
	return channels;
}
function applyScaleTransform(channel, options) {
	const { scale, transform: t = true } = channel;
	if (scale == null || !t) return;
	const { type, percent, interval, transform = percent ? (x) => x == null ? NaN : x * 100 : maybeIntervalTransform(interval, type) } = options[scale] ?? {};
	if (transform == null) return;
	channel.value = map$1(channel.value, transform);
	channel.transform = false;
}
function inferChannelScales(channels) {
	for (const name in channels) inferChannelScale(name, channels[name]);
}
function addScaleChannels(channelsByScale, stateByMark, options, filter = yes) {
	for (const { channels } of stateByMark.values()) for (const name in channels) {
		const channel = channels[name];
		const { scale } = channel;
		if (scale != null && filter(scale)) {
			if (scale === "projection") {
				if (!hasProjection(options)) {
					const gx = options.x?.domain === void 0;
					const gy = options.y?.domain === void 0;
					if (gx || gy) {
						const [x, y] = getGeometryChannels(channel);
						if (gx) addScaleChannel(channelsByScale, "x", x);
						if (gy) addScaleChannel(channelsByScale, "y", y);
					}
				}
			} else addScaleChannel(channelsByScale, scale, channel);
		}
	}
	return channelsByScale;
}
function addScaleChannel(channelsByScale, scale, channel) {
	const scaleChannels = channelsByScale.get(scale);
	if (scaleChannels !== void 0) scaleChannels.push(channel);
	else channelsByScale.set(scale, [channel]);
}
function maybeTopFacet(facet, options) {
	if (facet == null) return;
	const { x, y } = facet;
	if (x == null && y == null) return;
	const data = dataify(facet.data);
	if (data == null) throw new Error("missing facet data");
	const channels = {};
	if (x != null) channels.fx = createChannel(data, {
		value: x,
		scale: "fx"
	});
	if (y != null) channels.fy = createChannel(data, {
		value: y,
		scale: "fy"
	});
	applyScaleTransforms(channels, options);
	return {
		channels,
		groups: facetGroups(data, channels),
		data: facet.data
	};
}
function maybeMarkFacet(mark, topFacetState, options) {
	if (mark.facet === null || mark.facet === "super") return;
	const { fx, fy } = mark;
	if (fx != null || fy != null) {
		const data = dataify(mark.data ?? fx ?? fy);
		if (data === void 0) throw new Error(`missing facet data in ${mark.ariaLabel}`);
		if (data === null) return;
		const channels = {};
		if (fx != null) channels.fx = createChannel(data, {
			value: fx,
			scale: "fx"
		});
		if (fy != null) channels.fy = createChannel(data, {
			value: fy,
			scale: "fy"
		});
		applyScaleTransforms(channels, options);
		return {
			channels,
			groups: facetGroups(data, channels)
		};
	}
	if (topFacetState === void 0) return;
	const { channels, groups, data } = topFacetState;
	if (mark.facet !== "auto" || mark.data === data) return {
		channels,
		groups
	};
	if (data.length > 0 && (groups.size > 1 || groups.size === 1 && channels.fx && channels.fy && [...groups][0][1].size > 1) && lengthof(dataify(mark.data)) === lengthof(data)) warn(`Warning: the ${mark.ariaLabel} mark appears to use faceted data, but isn’t faceted. The mark data has the same length as the facet data and the mark facet option is "auto", but the mark data and facet data are distinct. If this mark should be faceted, set the mark facet option to true; otherwise, suppress this warning by setting the mark facet option to false.`);
}
function derive(mark, options = {}) {
	return initializer({
		...options,
		x: null,
		y: null
	}, (data, facets, channels, scales, dimensions, context) => {
		return context.getMarkState(mark);
	});
}
function inferTips(marks) {
	const tips = [];
	for (const mark of marks) {
		let tipOptions = mark.tip;
		if (tipOptions) {
			if (tipOptions === true) tipOptions = {};
			else if (typeof tipOptions === "string") tipOptions = { pointer: tipOptions };
			let { pointer: p, preferredAnchor: a } = tipOptions;
			p = /^x$/i.test(p) ? pointerX : /^y$/i.test(p) ? pointerY : pointer;
			tipOptions = p(derive(mark, tipOptions));
			tipOptions.title = null;
			if (a === void 0) tipOptions.preferredAnchor = p === pointerY ? "left" : "bottom";
			const t = tip(mark.data, tipOptions);
			t.facet = mark.facet;
			t.facetAnchor = mark.facetAnchor;
			tips.push(t);
		}
	}
	return tips;
}
function inferAxes(marks, channelsByScale, options) {
	let { projection, x = {}, y = {}, fx = {}, fy = {}, axis, grid, facet = {}, facet: { axis: facetAxis = axis, grid: facetGrid } = facet, x: { axis: xAxis = axis, grid: xGrid = xAxis === null ? null : grid } = x, y: { axis: yAxis = axis, grid: yGrid = yAxis === null ? null : grid } = y, fx: { axis: fxAxis = facetAxis, grid: fxGrid = fxAxis === null ? null : facetGrid } = fx, fy: { axis: fyAxis = facetAxis, grid: fyGrid = fyAxis === null ? null : facetGrid } = fy } = options;
	if (projection || !isScaleOptions(x) && !hasPositionChannel("x", marks)) xAxis = xGrid = null;
	if (projection || !isScaleOptions(y) && !hasPositionChannel("y", marks)) yAxis = yGrid = null;
	if (!channelsByScale.has("fx")) fxAxis = fxGrid = null;
	if (!channelsByScale.has("fy")) fyAxis = fyGrid = null;
	if (xAxis === void 0) xAxis = !hasAxis(marks, "x");
	if (yAxis === void 0) yAxis = !hasAxis(marks, "y");
	if (fxAxis === void 0) fxAxis = !hasAxis(marks, "fx");
	if (fyAxis === void 0) fyAxis = !hasAxis(marks, "fy");
	if (xAxis === true) xAxis = "bottom";
	if (yAxis === true) yAxis = "left";
	if (fxAxis === true) fxAxis = xAxis === "top" || xAxis === null ? "bottom" : "top";
	if (fyAxis === true) fyAxis = yAxis === "right" || yAxis === null ? "left" : "right";
	const axes = [];
	maybeGrid(axes, fyGrid, gridFy, fy);
	maybeAxis(axes, fyAxis, axisFy, "right", "left", facet, fy);
	maybeGrid(axes, fxGrid, gridFx, fx);
	maybeAxis(axes, fxAxis, axisFx, "top", "bottom", facet, fx);
	maybeGrid(axes, yGrid, gridY, y);
	maybeAxis(axes, yAxis, axisY, "left", "right", options, y);
	maybeGrid(axes, xGrid, gridX, x);
	maybeAxis(axes, xAxis, axisX, "bottom", "top", options, x);
	return axes;
}
function maybeAxis(axes, axis, axisType, primary, secondary, defaults, options) {
	if (!axis) return;
	const both = isBoth(axis);
	options = axisOptions(both ? primary : axis, defaults, options);
	const { line } = options;
	if ((axisType === axisY || axisType === axisX) && line && !isNone(line)) axes.push(frame(lineOptions(options)));
	axes.push(axisType(options));
	if (both) axes.push(axisType({
		...options,
		anchor: secondary,
		label: null
	}));
}
function maybeGrid(axes, grid, gridType, options) {
	if (!grid || isNone(grid)) return;
	axes.push(gridType(gridOptions(grid, options)));
}
function isBoth(value) {
	return /^\s*both\s*$/i.test(value);
}
function axisOptions(anchor, defaults, { line = defaults.line, ticks, tickSize, tickSpacing, tickPadding, tickFormat, tickRotate, fontVariant, ariaLabel, ariaDescription, label = defaults.label, labelAnchor, labelArrow = defaults.labelArrow, labelOffset }) {
	return {
		anchor,
		line,
		ticks,
		tickSize,
		tickSpacing,
		tickPadding,
		tickFormat,
		tickRotate,
		fontVariant,
		ariaLabel,
		ariaDescription,
		label,
		labelAnchor,
		labelArrow,
		labelOffset
	};
}
function lineOptions(options) {
	const { anchor, line } = options;
	return {
		anchor,
		facetAnchor: anchor + "-empty",
		stroke: line === true ? void 0 : line
	};
}
function gridOptions(grid, { stroke = isColor(grid) ? grid : void 0, ticks = isGridTicks(grid) ? grid : void 0, tickSpacing, ariaLabel, ariaDescription }) {
	return {
		stroke,
		ticks,
		tickSpacing,
		ariaLabel,
		ariaDescription
	};
}
function isGridTicks(grid) {
	switch (typeof grid) {
		case "number": return true;
		case "string": return !isColor(grid);
	}
	return isIterable(grid) || typeof grid?.range === "function";
}
function hasAxis(marks, k) {
	const prefix = `${k}-axis `;
	return marks.some((m) => m.ariaLabel?.startsWith(prefix));
}
function hasPositionChannel(k, marks) {
	for (const mark of marks) for (const key in mark.channels) {
		const { scale } = mark.channels[key];
		if (scale === k || scale === "projection") return true;
	}
	return false;
}
function inheritScaleLabels(newScales, scales) {
	for (const key in newScales) {
		const newScale = newScales[key];
		const scale = scales[key];
		if (newScale.label === void 0 && scale) newScale.label = scale.label;
	}
	return newScales;
}
function actualDimensions({ fx, fy }, dimensions) {
	const { marginTop, marginRight, marginBottom, marginLeft, width, height } = outerDimensions(dimensions);
	const fxr = fx && outerRange(fx);
	const fyr = fy && outerRange(fy);
	return {
		marginTop: fy ? fyr[0] : marginTop,
		marginRight: fx ? width - fxr[1] : marginRight,
		marginBottom: fy ? height - fyr[1] : marginBottom,
		marginLeft: fx ? fxr[0] : marginLeft,
		inset: {
			marginTop: dimensions.marginTop,
			marginRight: dimensions.marginRight,
			marginBottom: dimensions.marginBottom,
			marginLeft: dimensions.marginLeft
		},
		width,
		height
	};
}
function outerRange(scale) {
	const domain = scale.domain();
	if (domain.length === 0) return [0, scale.bandwidth()];
	let x1 = scale(domain[0]);
	let x2 = scale(domain[domain.length - 1]);
	if (x2 < x1) [x1, x2] = [x2, x1];
	return [x1, x2 + scale.bandwidth()];
}
// node_modules/@observablehq/plot/src/curve.js
var curves = /* @__PURE__ */ new Map([
	["basis", basis],
	["basis-closed", basisClosed],
	["basis-open", basisOpen],
	["bundle", bundle],
	["bump-x", bumpX],
	["bump-y", bumpY],
	["cardinal", cardinal],
	["cardinal-closed", cardinalClosed],
	["cardinal-open", cardinalOpen],
	["catmull-rom", catmullRom],
	["catmull-rom-closed", catmullRomClosed],
	["catmull-rom-open", catmullRomOpen],
	["linear", curveLinear],
	["linear-closed", linearClosed],
	["monotone-x", monotoneX],
	["monotone-y", monotoneY],
	["natural", natural],
	["step", step],
	["step-after", stepAfter],
	["step-before", stepBefore]
]);
function maybeCurve(curve = curveLinear, tension) {
	if (typeof curve === "function") return curve;
	const c = curves.get(`${curve}`.toLowerCase());
	if (!c) throw new Error(`unknown curve: ${curve}`);
	if (tension !== void 0) {
		if ("beta" in c) return c.beta(tension);
		else if ("tension" in c) return c.tension(tension);
		else if ("alpha" in c) return c.alpha(tension);
	}
	return c;
}
function maybeCurveAuto(curve = curveAuto, tension) {
	return typeof curve !== "function" && `${curve}`.toLowerCase() === "auto" ? curveAuto : maybeCurve(curve, tension);
}
function curveAuto(context) {
	return curveLinear(context);
}
// node_modules/@observablehq/plot/src/transforms/bin.js
function binX(outputs = { y: "count" }, options = {}) {
	[outputs, options] = mergeOptions(outputs, options);
	const { x, y } = options;
	return binn(maybeBinValue(x, options, identity$1), null, null, y, outputs, maybeInsetX(options));
}
function maybeDenseInterval(bin, k, options = {}) {
	if (options?.interval == null) return options;
	const { reduce = reduceFirst } = options;
	const outputs = { filter: null };
	if (options[k] != null) outputs[k] = reduce;
	if (options[`${k}1`] != null) outputs[`${k}1`] = reduce;
	if (options[`${k}2`] != null) outputs[`${k}2`] = reduce;
	return bin(outputs, options);
}
function maybeDenseIntervalX(options = {}) {
	return maybeDenseInterval(binX, "y", withTip(options, "x"));
}
function binn(bx, by, gx, gy, { data: reduceData = reduceIdentity, filter = reduceCount, sort, reverse, ...outputs } = {}, inputs = {}) {
	bx = maybeBin(bx);
	by = maybeBin(by);
	outputs = maybeBinOutputs(outputs, inputs);
	reduceData = maybeBinReduce(reduceData, identity$1);
	sort = sort == null ? void 0 : maybeBinOutput("sort", sort, inputs);
	filter = filter == null ? void 0 : maybeBinEvaluator("filter", filter, inputs);
	if (gx != null && hasOutput(outputs, "x", "x1", "x2")) gx = null;
	if (gy != null && hasOutput(outputs, "y", "y1", "y2")) gy = null;
	const [BX1, setBX1] = maybeColumn(bx);
	const [BX2, setBX2] = maybeColumn(bx);
	const [BY1, setBY1] = maybeColumn(by);
	const [BY2, setBY2] = maybeColumn(by);
	const [k, gk] = gx != null ? [gx, "x"] : gy != null ? [gy, "y"] : [];
	const [GK, setGK] = maybeColumn(k);
	const { x, y, z, fill, stroke, x1, x2, y1, y2, domain, cumulative, thresholds, interval, ...options } = inputs;
	const [GZ, setGZ] = maybeColumn(z);
	const [vfill] = maybeColorChannel(fill);
	const [vstroke] = maybeColorChannel(stroke);
	const [GF, setGF] = maybeColumn(vfill);
	const [GS, setGS] = maybeColumn(vstroke);
	return {
		..."z" in inputs && { z: GZ || z },
		..."fill" in inputs && { fill: GF || fill },
		..."stroke" in inputs && { stroke: GS || stroke },
		...basic(options, (data, facets, plotOptions) => {
			const K = maybeApplyInterval(valueof(data, k), plotOptions?.[gk]);
			const Z = valueof(data, z);
			const F = valueof(data, vfill);
			const S = valueof(data, vstroke);
			const G = maybeSubgroup(outputs, {
				z: Z,
				fill: F,
				stroke: S
			});
			const groupFacets = [];
			const groupData = [];
			const GK = K && setGK([]);
			const GZ = Z && setGZ([]);
			const GF = F && setGF([]);
			const GS = S && setGS([]);
			const BX1 = bx && setBX1([]);
			const BX2 = bx && setBX2([]);
			const BY1 = by && setBY1([]);
			const BY2 = by && setBY2([]);
			const bin = bing(bx, by, data);
			let i = 0;
			for (const o of outputs) o.initialize(data);
			if (sort) sort.initialize(data);
			if (filter) filter.initialize(data);
			for (const facet of facets) {
				const groupFacet = [];
				for (const o of outputs) o.scope("facet", facet);
				if (sort) sort.scope("facet", facet);
				if (filter) filter.scope("facet", facet);
				for (const [f, I] of maybeGroup(facet, G)) for (const [k, g] of maybeGroup(I, K)) for (const [b, extent] of bin(g)) {
					if (G) extent.z = f;
					if (filter && !filter.reduce(b, extent)) continue;
					groupFacet.push(i++);
					groupData.push(reduceData.reduceIndex(b, data, extent));
					if (K) GK.push(k);
					if (Z) GZ.push(G === Z ? f : Z[(b.length > 0 ? b : g)[0]]);
					if (F) GF.push(G === F ? f : F[(b.length > 0 ? b : g)[0]]);
					if (S) GS.push(G === S ? f : S[(b.length > 0 ? b : g)[0]]);
					if (BX1) BX1.push(extent.x1), BX2.push(extent.x2);
					if (BY1) BY1.push(extent.y1), BY2.push(extent.y2);
					for (const o of outputs) o.reduce(b, extent);
					if (sort) sort.reduce(b, extent);
				}
				groupFacets.push(groupFacet);
			}
			maybeSort(groupFacets, sort, reverse);
			return {
				data: groupData,
				facets: groupFacets
			};
		}),
		...!hasOutput(outputs, "x") && (BX1 ? {
			x1: BX1,
			x2: BX2,
			x: mid(BX1, BX2)
		} : {
			x,
			x1,
			x2
		}),
		...!hasOutput(outputs, "y") && (BY1 ? {
			y1: BY1,
			y2: BY2,
			y: mid(BY1, BY2)
		} : {
			y,
			y1,
			y2
		}),
		...GK && { [gk]: GK },
		...Object.fromEntries(outputs.map(({ name, output }) => [name, output]))
	};
}
function mergeOptions({ cumulative, domain, thresholds, interval, ...outputs }, options) {
	return [outputs, {
		cumulative,
		domain,
		thresholds,
		interval,
		...options
	}];
}
function maybeBinValue(value, { cumulative, domain, thresholds, interval }, defaultValue) {
	value = { ...maybeValue(value) };
	if (value.domain === void 0) value.domain = domain;
	if (value.cumulative === void 0) value.cumulative = cumulative;
	if (value.thresholds === void 0) value.thresholds = thresholds;
	if (value.interval === void 0) value.interval = interval;
	if (value.value === void 0) value.value = defaultValue;
	value.thresholds = maybeThresholds(value.thresholds, value.interval);
	return value;
}
function maybeBin(options) {
	if (options == null) return;
	const { value, cumulative, domain = extent$1, thresholds } = options;
	const bin = (data) => {
		let V = valueof(data, value);
		let T;
		if (isTemporal(V) || isTimeThresholds(thresholds)) {
			V = map$1(V, coerceDate, Float64Array);
			let [min, max] = typeof domain === "function" ? domain(V) : domain;
			let t = typeof thresholds === "function" && !isInterval(thresholds) ? thresholds(V, min, max) : thresholds;
			if (typeof t === "number") t = utcTickInterval(min, max, t);
			if (isInterval(t)) {
				if (domain === extent$1) {
					min = t.floor(min);
					max = t.offset(t.floor(max));
				}
				t = t.range(min, t.offset(max));
			}
			T = t;
		} else {
			V = coerceNumbers(V);
			let [min, max] = typeof domain === "function" ? domain(V) : domain;
			let t = typeof thresholds === "function" && !isInterval(thresholds) ? thresholds(V, min, max) : thresholds;
			if (typeof t === "number") {
				if (domain === extent$1) {
					let step = tickIncrement(min, max, t);
					if (isFinite(step)) {
						if (step > 0) {
							let r0 = Math.round(min / step);
							let r1 = Math.round(max / step);
							if (!(r0 * step <= min)) --r0;
							if (!(r1 * step > max)) ++r1;
							let n = r1 - r0 + 1;
							t = new Float64Array(n);
							for (let i = 0; i < n; ++i) t[i] = (r0 + i) * step;
						} else if (step < 0) {
							step = -step;
							let r0 = Math.round(min * step);
							let r1 = Math.round(max * step);
							if (!(r0 / step <= min)) --r0;
							if (!(r1 / step > max)) ++r1;
							let n = r1 - r0 + 1;
							t = new Float64Array(n);
							for (let i = 0; i < n; ++i) t[i] = (r0 + i) / step;
						} else t = [min];
					} else t = [min];
				} else t = ticks(min, max, t);
			} else if (isInterval(t)) {
				if (domain === extent$1) {
					min = t.floor(min);
					max = t.offset(t.floor(max));
				}
				t = t.range(min, t.offset(max));
			}
			T = t;
		}
		const E = [];
		if (T.length === 1) E.push([T[0], T[0]]);
		else for (let i = 1; i < T.length; ++i) E.push([T[i - 1], T[i]]);
		E.bin = (cumulative < 0 ? bin1cn : cumulative > 0 ? bin1cp : bin1)(E, T, V);
		return E;
	};
	bin.label = labelof(value);
	return bin;
}
function maybeThresholds(thresholds, interval, defaultThresholds = thresholdAuto) {
	if (thresholds === void 0) return interval === void 0 ? defaultThresholds : maybeRangeInterval(interval);
	if (typeof thresholds === "string") {
		switch (thresholds.toLowerCase()) {
			case "freedman-diaconis": return thresholdFreedmanDiaconis;
			case "scott": return thresholdScott;
			case "sturges": return thresholdSturges;
			case "auto": return thresholdAuto;
		}
		return utcInterval(thresholds);
	}
	return thresholds;
}
function maybeBinOutputs(outputs, inputs) {
	return maybeOutputs(outputs, inputs, maybeBinOutput);
}
function maybeBinOutput(name, reduce, inputs) {
	return maybeOutput(name, reduce, inputs, maybeBinEvaluator);
}
function maybeBinEvaluator(name, reduce, inputs) {
	return maybeEvaluator(name, reduce, inputs, maybeBinReduce);
}
function maybeBinReduce(reduce, value) {
	return maybeReduce(reduce, value, maybeBinReduceFallback);
}
function maybeBinReduceFallback(reduce) {
	switch (`${reduce}`.toLowerCase()) {
		case "x": return reduceX;
		case "x1": return reduceX1;
		case "x2": return reduceX2;
		case "y": return reduceY;
		case "y1": return reduceY1;
		case "y2": return reduceY2;
		case "z": return reduceZ;
	}
	throw new Error(`invalid bin reduce: ${reduce}`);
}
function thresholdAuto(values, min, max) {
	return Math.min(200, thresholdScott(values, min, max));
}
function isTimeThresholds(t) {
	return isTimeInterval(t) || isIterable(t) && isTemporal(t);
}
function bing(bx, by, data) {
	const EX = bx?.(data);
	const EY = by?.(data);
	return EX && EY ? function* (I) {
		const X = EX.bin(I);
		for (const [ix, [x1, x2]] of EX.entries()) {
			const Y = EY.bin(X[ix]);
			for (const [iy, [y1, y2]] of EY.entries()) yield [Y[iy], {
				data,
				x1,
				y1,
				x2,
				y2
			}];
		}
	} : EX ? function* (I) {
		const X = EX.bin(I);
		for (const [i, [x1, x2]] of EX.entries()) yield [X[i], {
			data,
			x1,
			x2
		}];
	} : function* (I) {
		const Y = EY.bin(I);
		for (const [i, [y1, y2]] of EY.entries()) yield [Y[i], {
			data,
			y1,
			y2
		}];
	};
}
function bin1(E, T, V) {
	T = coerceNumbers(T);
	return (I) => {
		const B = E.map(() => []);
		for (const i of I) B[bisectRight(T, V[i]) - 1]?.push(i);
		return B;
	};
}
function bin1cp(E, T, V) {
	const bin = bin1(E, T, V);
	return (I) => {
		const B = bin(I);
		for (let i = 1, n = B.length; i < n; ++i) {
			const C = B[i - 1];
			const b = B[i];
			for (const j of C) b.push(j);
		}
		return B;
	};
}
function bin1cn(E, T, V) {
	const bin = bin1(E, T, V);
	return (I) => {
		const B = bin(I);
		for (let i = B.length - 2; i >= 0; --i) {
			const C = B[i + 1];
			const b = B[i];
			for (const j of C) b.push(j);
		}
		return B;
	};
}
function mid1(x1, x2) {
	const m = (+x1 + +x2) / 2;
	return x1 instanceof Date ? new Date(m) : m;
}
var reduceX = { reduceIndex(I, X, { x1, x2 }) {
	return mid1(x1, x2);
} };
var reduceY = { reduceIndex(I, X, { y1, y2 }) {
	return mid1(y1, y2);
} };
var reduceX1 = { reduceIndex(I, X, { x1 }) {
	return x1;
} };
var reduceX2 = { reduceIndex(I, X, { x2 }) {
	return x2;
} };
var reduceY1 = { reduceIndex(I, X, { y1 }) {
	return y1;
} };
var reduceY2 = { reduceIndex(I, X, { y2 }) {
	return y2;
} };
// node_modules/@observablehq/plot/src/marks/area.js
var defaults$3 = {
	ariaLabel: "area",
	strokeWidth: 1,
	strokeLinecap: "round",
	strokeLinejoin: "round",
	strokeMiterlimit: 1
};
var Area = class extends Mark {
	constructor(data, options = {}) {
		const { x1, y1, x2, y2, z, curve, tension } = options;
		super(data, {
			x1: {
				value: x1,
				scale: "x"
			},
			y1: {
				value: y1,
				scale: "y"
			},
			x2: {
				value: x2,
				scale: "x",
				optional: true
			},
			y2: {
				value: y2,
				scale: "y",
				optional: true
			},
			z: {
				value: maybeZ(options),
				optional: true
			}
		}, options, defaults$3);
		this.z = z;
		this.curve = maybeCurve(curve, tension);
	}
	filter(index) {
		return index;
	}
	render(index, scales, channels, dimensions, context) {
		const { x1: X1, y1: Y1, x2: X2 = X1, y2: Y2 = Y1 } = channels;
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyTransform, this, scales, 0, 0).call((g) => g.selectAll().data(groupIndex(index, [
			X1,
			Y1,
			X2,
			Y2
		], this, channels)).enter().append("path").call(applyDirectStyles, this).call(applyGroupedChannelStyles, this, channels).attr("d", area().curve(this.curve).defined((i) => i >= 0).x0((i) => X1[i]).y0((i) => Y1[i]).x1((i) => X2[i]).y1((i) => Y2[i]))).node();
	}
};
function areaY(data, options) {
	const { x = indexOf, ...rest } = maybeDenseIntervalX(options);
	return new Area(data, maybeStackY(maybeIdentityY({
		...rest,
		x1: x,
		x2: void 0
	}, x === indexOf ? "y2" : "y")));
}
// node_modules/@observablehq/plot/src/marks/bar.js
var barDefaults = { ariaLabel: "bar" };
var AbstractBar = class extends Mark {
	constructor(data, channels, options = {}, defaults = barDefaults) {
		super(data, channels, options, defaults);
		rectInsets(this, options);
		rectRadii(this, options);
	}
	render(index, scales, channels, dimensions, context) {
		const { rx, ry, rx1y1, rx1y2, rx2y1, rx2y2 } = this;
		const x = this._x(scales, channels, dimensions);
		const y = this._y(scales, channels, dimensions);
		const w = this._width(scales, channels, dimensions);
		const h = this._height(scales, channels, dimensions);
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(this._transform, this, scales).call((g) => g.selectAll().data(index).enter().call(rx1y1 || rx1y2 || rx2y1 || rx2y2 ? (g) => g.append("path").call(applyDirectStyles, this).call(applyRoundedRect, x, y, add(x, w), add(y, h), this).call(applyChannelStyles, this, channels) : (g) => g.append("rect").call(applyDirectStyles, this).attr("x", x).attr("width", w).attr("y", y).attr("height", h).call(applyAttr, "rx", rx).call(applyAttr, "ry", ry).call(applyChannelStyles, this, channels))).node();
	}
	_x(scales, { x: X }, { marginLeft }) {
		const { insetLeft } = this;
		return X ? (i) => X[i] + insetLeft : marginLeft + insetLeft;
	}
	_y(scales, { y: Y }, { marginTop }) {
		const { insetTop } = this;
		return Y ? (i) => Y[i] + insetTop : marginTop + insetTop;
	}
	_width({ x }, { x: X }, { marginRight, marginLeft, width }) {
		const { insetLeft, insetRight } = this;
		const bandwidth = X && x ? x.bandwidth() : width - marginRight - marginLeft;
		return Math.max(0, bandwidth - insetLeft - insetRight);
	}
	_height({ y }, { y: Y }, { marginTop, marginBottom, height }) {
		const { insetTop, insetBottom } = this;
		const bandwidth = Y && y ? y.bandwidth() : height - marginTop - marginBottom;
		return Math.max(0, bandwidth - insetTop - insetBottom);
	}
};
function add(a, b) {
	return typeof a === "function" && typeof b === "function" ? (i) => a(i) + b(i) : typeof a === "function" ? (i) => a(i) + b : typeof b === "function" ? (i) => a + b(i) : a + b;
}
// node_modules/@observablehq/plot/src/marks/cell.js
var defaults$2 = { ariaLabel: "cell" };
var Cell = class extends AbstractBar {
	constructor(data, { x, y, ...options } = {}) {
		super(data, {
			x: {
				value: x,
				scale: "x",
				type: "band",
				optional: true
			},
			y: {
				value: y,
				scale: "y",
				type: "band",
				optional: true
			}
		}, options, defaults$2);
	}
	_transform(selection, mark) {
		selection.call(applyTransform, mark, {}, 0, 0);
	}
};
function cell$1(data, { x, y, ...options } = {}) {
	[x, y] = maybeTuple(x, y);
	return new Cell(data, {
		...options,
		x,
		y
	});
}
// node_modules/@observablehq/plot/src/marks/dot.js
var defaults$1 = {
	ariaLabel: "dot",
	fill: "none",
	stroke: "currentColor",
	strokeWidth: 1.5
};
function withDefaultSort(options) {
	return options.sort === void 0 && options.reverse === void 0 ? sort({ channel: "-r" }, options) : options;
}
var Dot = class extends Mark {
	constructor(data, options = {}) {
		const { x, y, r, rotate, symbol = circle, frameAnchor } = options;
		const [vrotate, crotate] = maybeNumberChannel(rotate, 0);
		const [vsymbol, csymbol] = maybeSymbolChannel(symbol);
		const [vr, cr] = maybeNumberChannel(r, vsymbol == null ? 3 : 4.5);
		super(data, {
			x: {
				value: x,
				scale: "x",
				optional: true
			},
			y: {
				value: y,
				scale: "y",
				optional: true
			},
			r: {
				value: vr,
				scale: "r",
				filter: positive,
				optional: true
			},
			rotate: {
				value: vrotate,
				optional: true
			},
			symbol: {
				value: vsymbol,
				scale: "auto",
				optional: true
			}
		}, withDefaultSort(options), defaults$1);
		this.r = cr;
		this.rotate = crotate;
		this.symbol = csymbol;
		this.frameAnchor = maybeFrameAnchor(frameAnchor);
		const { channels } = this;
		const { symbol: symbolChannel } = channels;
		if (symbolChannel) {
			const { fill: fillChannel, stroke: strokeChannel } = channels;
			symbolChannel.hint = {
				fill: fillChannel ? fillChannel.value === symbolChannel.value ? "color" : "currentColor" : this.fill ?? "currentColor",
				stroke: strokeChannel ? strokeChannel.value === symbolChannel.value ? "color" : "currentColor" : this.stroke ?? "none"
			};
		}
	}
	render(index, scales, channels, dimensions, context) {
		const { x, y } = scales;
		const { x: X, y: Y, r: R, rotate: A, symbol: S } = channels;
		const { r, rotate, symbol } = this;
		const [cx, cy] = applyFrameAnchor(this, dimensions);
		const circle$1 = symbol === circle;
		const size = R ? void 0 : r * r * Math.PI;
		if (negative(r)) index = [];
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyTransform, this, {
			x: X && x,
			y: Y && y
		}).call((g) => g.selectAll().data(index).enter().append(circle$1 ? "circle" : "path").call(applyDirectStyles, this).call(circle$1 ? (selection) => {
			selection.attr("cx", X ? (i) => X[i] : cx).attr("cy", Y ? (i) => Y[i] : cy).attr("r", R ? (i) => R[i] : r);
		} : (selection) => {
			selection.attr("transform", template`translate(${X ? (i) => X[i] : cx},${Y ? (i) => Y[i] : cy})${A ? (i) => ` rotate(${A[i]})` : rotate ? ` rotate(${rotate})` : ``}`).attr("d", R && S ? (i) => {
				const p = pathRound();
				S[i].draw(p, R[i] * R[i] * Math.PI);
				return p;
			} : R ? (i) => {
				const p = pathRound();
				symbol.draw(p, R[i] * R[i] * Math.PI);
				return p;
			} : S ? (i) => {
				const p = pathRound();
				S[i].draw(p, size);
				return p;
			} : (() => {
				const p = pathRound();
				symbol.draw(p, size);
				return p;
			})());
		}).call(applyChannelStyles, this, channels)).node();
	}
};
function dot(data, { x, y, ...options } = {}) {
	if (options.frameAnchor === void 0) [x, y] = maybeTuple(x, y);
	return new Dot(data, {
		...options,
		x,
		y
	});
}
// node_modules/@observablehq/plot/src/marks/line.js
var defaults = {
	ariaLabel: "line",
	fill: "none",
	stroke: "currentColor",
	strokeWidth: 1.5,
	strokeLinecap: "round",
	strokeLinejoin: "round",
	strokeMiterlimit: 1
};
var Line$2 = class extends Mark {
	constructor(data, options = {}) {
		const { x, y, z, curve, tension } = options;
		super(data, {
			x: {
				value: x,
				scale: "x"
			},
			y: {
				value: y,
				scale: "y"
			},
			z: {
				value: maybeZ(options),
				optional: true
			}
		}, options, defaults);
		this.z = z;
		this.curve = maybeCurveAuto(curve, tension);
		markers(this, options);
	}
	filter(index) {
		return index;
	}
	project(channels, values, context) {
		if (this.curve !== curveAuto) super.project(channels, values, context);
	}
	render(index, scales, channels, dimensions, context) {
		const { x: X, y: Y } = channels;
		const { curve } = this;
		return create("svg:g", context).call(applyIndirectStyles, this, dimensions, context).call(applyTransform, this, scales).call((g) => g.selectAll().data(groupIndex(index, [X, Y], this, channels)).enter().append("path").call(applyDirectStyles, this).call(applyGroupedChannelStyles, this, channels).call(applyGroupedMarkers, this, channels, context).attr("d", curve === curveAuto && context.projection ? sphereLine(context.path(), X, Y) : line().curve(curve).defined((i) => i >= 0).x((i) => X[i]).y((i) => Y[i]))).node();
	}
};
function sphereLine(path, X, Y) {
	X = coerceNumbers(X);
	Y = coerceNumbers(Y);
	return (I) => {
		let line = [];
		const lines = [line];
		for (const i of I) if (i === -1) {
			line = [];
			lines.push(line);
		} else line.push([X[i], Y[i]]);
		return path({
			type: "MultiLineString",
			coordinates: lines
		});
	};
}
function lineY(data, { x = indexOf, y = identity$1, ...options } = {}) {
	return new Line$2(data, maybeDenseIntervalX({
		...options,
		x,
		y
	}));
}
// node_modules/@observablehq/plot/src/index.js
Mark.prototype.plot = function({ marks = [], ...options } = {}) {
	return plot({
		...options,
		marks: [...marks, this]
	});
};
// src/parts/chart.tsx
/** A figure of Observable Plot as wide as its place. */
function Chart({ label, options, inputs, fixed = false }) {
	const place = T(null);
	const [width, setWidth] = d$2(0);
	F$1(() => {
		const measure = () => setWidth(place.current.clientWidth);
		const observer = new ResizeObserver(measure);
		observer.observe(place.current);
		measure();
		return () => observer.disconnect();
	}, []);
	F$1(() => {
		if (!width) return;
		const figure = plot({
			ariaLabel: label,
			...fixed ? {} : { width },
			...options(width)
		});
		figure.querySelectorAll("style").forEach((style) => style.remove());
		figure.querySelectorAll("g[aria-label]").forEach((mark) => {
			mark.setAttribute("data-mark", mark.getAttribute("aria-label"));
			mark.removeAttribute("aria-label");
		});
		(figure instanceof SVGElement ? figure : figure.querySelector("svg"))?.setAttribute("role", "img");
		place.current.replaceChildren(figure);
		return () => figure.remove();
	}, [
		width,
		label,
		...inputs
	]);
	return /* @__PURE__ */ a$1("div", {
		class: "chart",
		ref: place,
		"aria-busy": !width
	});
}
// src/parts/heat_map.tsx
/** A matrix as coloured cells (cividis: lightness alone orders it), with the numbers in the cells where they fit. */
function HeatMap({ title, rows, columns, values, rowLabel, columnLabel, domain }) {
	const known = values.flatMap((line, row) => line.map((value, column) => ({
		row: rows[row],
		column: columns[column],
		value
	}))).filter((cell) => cell.value !== null);
	const options = (width) => {
		const size = Math.min(48, (width - 60) / columns.length, 620 / rows.length);
		const [low, high] = domain ?? [Math.min(...known.map((cell) => cell.value)), Math.max(...known.map((cell) => cell.value))];
		return {
			width: size * columns.length + 60,
			height: size * rows.length + 56,
			marginLeft: 44,
			marginTop: 12,
			marginBottom: 40,
			marginRight: 12,
			padding: .03,
			x: {
				type: "band",
				domain: columns,
				label: columnLabel,
				labelAnchor: "center",
				tickSize: 0
			},
			y: {
				type: "band",
				domain: rows,
				label: rowLabel,
				labelAnchor: "center",
				reverse: true,
				tickSize: 0
			},
			color: {
				type: "linear",
				scheme: "cividis",
				domain: [low, high]
			},
			marks: [
				cell$1(known, {
					x: "column",
					y: "row",
					fill: "value"
				}),
				...size >= 32 ? [text$1(known, {
					x: "column",
					y: "row",
					text: (cell) => cell.value.toFixed(2).replace(/^0/, ""),
					fill: (cell) => (cell.value - low) / (high - low || 1) > .55 ? "#111" : "#fff",
					fontSize: 11
				})] : [],
				tip(known, pointer({
					x: "column",
					y: "row",
					fill: "var(--raised)",
					stroke: "var(--line)",
					title: (cell) => `${rowLabel} ${cell.row}, ${columnLabel} ${cell.column}\n${cell.value.toFixed(4)}`
				}))
			]
		};
	};
	return /* @__PURE__ */ a$1(Chart, {
		label: title,
		options,
		inputs: [values],
		fixed: true
	});
}
// src/palette.ts
/** Okabe and Ito's colours, told apart by readers with any kind of colour vision; the page's variables --c0 to --c7. */
var PALETTE = [
	"#0072b2",
	"#e69f00",
	"#009e73",
	"#d55e00",
	"#cc79a7",
	"#56b4e9",
	"#f0e442",
	"#888888"
];
/** The colour of a category: a CSS variable, which differs between light and dark. */
var color = (index) => index < 0 ? "var(--muted)" : `var(--c${index % PALETTE.length})`;
// src/parts/layer_curves.tsx
var DASHES = [
	"none",
	"5 3",
	"2 3",
	"8 3 2 3",
	"1 2"
];
/** Values by layer as one curve a series, named at its end, with intervals where there are any. */
function LayerCurves({ points, label, title, height = 260, layer, series = [...new Set(points.map((point) => point.series))] }) {
	const layers = [...new Set(points.map((point) => point.layer))].sort((a, b) => a - b);
	const known = points.filter((point) => point.value !== null);
	const stroke = (point) => color(series.indexOf(point.series));
	const options = (width) => ({
		height,
		marginRight: Math.min(150, 20 + 6.6 * Math.max(...series.map((name) => name.length), 0)),
		marginLeft: 44,
		x: {
			label: "layer",
			ticks: layers.filter((_, at) => at % Math.ceil(layers.length * 26 / Math.max(52, width - 150)) === 0),
			tickFormat: "d",
			labelAnchor: "center",
			labelArrow: "none"
		},
		y: {
			label,
			labelArrow: "none",
			grid: true,
			nice: true,
			ticks: Math.max(3, height / 48)
		},
		marks: [
			...layer === void 0 ? [] : [ruleX([layer], {
				stroke: "var(--control)",
				strokeDasharray: "2 2"
			})],
			areaY(known.filter((point) => point.low != null && point.high != null), {
				x: "layer",
				y1: "low",
				y2: "high",
				z: "series",
				fill: stroke,
				fillOpacity: .16
			}),
			...series.map((name, position) => lineY(known.filter((point) => point.series === name), {
				x: "layer",
				y: "value",
				stroke: color(position),
				strokeWidth: 2,
				strokeDasharray: DASHES[Math.floor(position / 8)] ?? "none"
			})),
			dot(known, {
				x: "layer",
				y: "value",
				fill: stroke,
				r: 2.5
			}),
			text$1(ends(known, series), {
				x: "layer",
				y: "shown",
				text: "series",
				textAnchor: "start",
				dx: 8,
				fill: stroke,
				fontWeight: 600
			}),
			tip(known, pointer({
				x: "layer",
				y: "value",
				fill: "var(--raised)",
				stroke: "var(--line)",
				title: (point) => `${point.series}\nlayer ${point.layer}: ${point.value.toFixed(4)}` + (point.low != null && point.high != null ? `\n95 % interval ${point.low.toFixed(4)} to ${point.high.toFixed(4)}` : "")
			}))
		]
	});
	/** The last point of each curve, moved apart so that the names do not overlap. */
	function ends(all, names) {
		const values = all.flatMap((point) => [
			point.value,
			point.low ?? point.value,
			point.high ?? point.value
		]);
		const step = (Math.max(...values) - Math.min(...values)) * 15 / (height - 60);
		const last = names.flatMap((name) => all.filter((point) => point.series === name).sort((a, b) => b.layer - a.layer).slice(0, 1));
		let above = -Infinity;
		return last.sort((a, b) => a.value - b.value).map((point) => ({
			...point,
			shown: above = Math.max(point.value, above + step)
		}));
	}
	return /* @__PURE__ */ a$1(Chart, {
		label: title,
		options,
		inputs: [
			points,
			height,
			layer,
			label
		]
	});
}
// src/parts/python_call.tsx
/** The call of the public API that gives what a view shows, with a button that copies it. */
function PythonCall({ code, folded = false }) {
	const [copied, setCopied] = d$2(false);
	const copy = async () => {
		await navigator.clipboard.writeText(code);
		setCopied(true);
		setTimeout(() => setCopied(false), 2e3);
	};
	return /* @__PURE__ */ a$1("div", {
		class: "python",
		children: [/* @__PURE__ */ a$1("details", {
			open: !folded,
			children: [/* @__PURE__ */ a$1("summary", { children: "Python" }), /* @__PURE__ */ a$1("pre", {
				tabIndex: 0,
				role: "region",
				"aria-label": "The Python call",
				children: /* @__PURE__ */ a$1("code", { children: code })
			})]
		}), /* @__PURE__ */ a$1("button", {
			type: "button",
			class: "quiet",
			onClick: copy,
			children: /* @__PURE__ */ a$1("span", {
				"aria-live": "polite",
				children: copied ? "Copied" : "Copy"
			})
		})]
	});
}
// src/parts/table.tsx
/** A table; the headers of columns that can be sorted write `sort` and `desc` into the state. */
function Table({ label, columns, rows, id }) {
	const { values, go } = useApp();
	const descending = values.desc === "1";
	return /* @__PURE__ */ a$1("div", {
		class: "scroll",
		tabIndex: 0,
		role: "region",
		"aria-label": label,
		children: /* @__PURE__ */ a$1("table", { children: [/* @__PURE__ */ a$1("thead", { children: /* @__PURE__ */ a$1("tr", { children: columns.map((column) => {
			const sorted = column.sort !== void 0 && values.sort === column.sort;
			const order = sorted ? descending ? "descending" : "ascending" : void 0;
			return /* @__PURE__ */ a$1("th", {
				scope: "col",
				class: column.class,
				"aria-sort": order,
				children: column.sort === void 0 ? column.title : /* @__PURE__ */ a$1("button", {
					type: "button",
					class: "sort",
					onClick: () => go({
						sort: sorted && descending ? null : column.sort,
						desc: sorted && !descending ? "1" : null,
						offset: null
					}),
					children: [column.title, /* @__PURE__ */ a$1("span", {
						"aria-hidden": "true",
						children: sorted ? descending ? " ↓" : " ↑" : ""
					})]
				})
			}, column.name);
		}) }) }), /* @__PURE__ */ a$1("tbody", { children: rows.map((row) => /* @__PURE__ */ a$1("tr", { children: columns.map((column) => /* @__PURE__ */ a$1("td", {
			class: column.class,
			children: column.cell(row)
		}, column.name)) }, id(row))) })] })
	});
}
/** Moves through the pages of a long table by `offset` in the state. */
function Pager({ total, size }) {
	const { values, go } = useApp();
	const offset = Math.min(Number(values.offset) || 0, Math.max(0, total - 1));
	const last = Math.floor(Math.max(0, total - 1) / size) * size;
	const to = (value) => go({ offset: value || null });
	const number = (value) => value.toLocaleString("en");
	return /* @__PURE__ */ a$1("span", {
		class: "pager",
		role: "group",
		"aria-label": "Pages",
		children: [
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset === 0,
				onClick: () => to(0),
				"aria-label": "First page",
				children: "«"
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset === 0,
				onClick: () => to(Math.max(0, offset - size)),
				"aria-label": "Previous page",
				children: "‹"
			}),
			/* @__PURE__ */ a$1("span", {
				class: "numbers",
				children: total ? `${number(offset + 1)}–${number(Math.min(total, offset + size))} of ${number(total)}` : "none"
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset >= last,
				onClick: () => to(offset + size),
				"aria-label": "Next page",
				children: "›"
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset >= last,
				onClick: () => to(last),
				"aria-label": "Last page",
				children: "»"
			})
		]
	});
}
// src/use_query.ts
var ANSWERS = 40;
var KEPT = 268435456;
var answers = /* @__PURE__ */ new WeakMap();
function remembered(source) {
	if (!answers.has(source)) answers.set(source, /* @__PURE__ */ new Map());
	return answers.get(source);
}
var nbytes = (values) => values.flatMap((each) => Object.values(each?.arrays ?? {})).reduce((sum, { values }) => sum + values.byteLength, 0);
/** The answer of a query, asked again when its parameters change; `null` asks nothing. */
function useQuery(name, params, options = {}) {
	const { source } = useApp();
	const [tries, setTries] = d$2(0);
	const key = params && `${name} ${JSON.stringify(params)}`;
	const [state, setState] = d$2({
		status: "idle",
		key: null
	});
	A$2(() => {
		if (!key || !params) return setState({
			status: "idle",
			key
		});
		const known = remembered(source);
		if (known.has(key)) return setState({
			status: "done",
			value: known.get(key),
			key
		});
		const abort = new AbortController();
		setState((before) => ({
			status: "loading",
			value: before.value,
			key
		}));
		const progress = options.progress ? (done, total) => setState((before) => before.key === key ? {
			...before,
			progress: {
				done,
				total
			}
		} : before) : void 0;
		source.query(name, params, {
			signal: abort.signal,
			progress
		}).then((value) => {
			known.set(key, value);
			while (known.size > ANSWERS || known.size > 1 && nbytes([...known.values()]) > KEPT) known.delete(known.keys().next().value);
			if (!abort.signal.aborted) setState({
				status: "done",
				value,
				key
			});
		}, (error) => {
			if (!abort.signal.aborted) setState({
				status: "error",
				error: String(error.message ?? error),
				key
			});
		});
		return () => abort.abort();
	}, [
		source,
		key,
		tries
	]);
	const retry = () => setTries(tries + 1);
	if (state.key !== key) return {
		status: key ? "loading" : "idle",
		value: key ? state.value : void 0,
		retry
	};
	return {
		...state,
		retry
	};
}
// src/views/layers.tsx
function LayersView() {
	const { source, index, values } = useApp();
	return /* @__PURE__ */ a$1("div", {
		class: "layers",
		children: [
			/* @__PURE__ */ a$1(GeometryPart, {}),
			source.has("cka") && /* @__PURE__ */ a$1(CkaPart, {}, `${index} ${values.other}`),
			source.has("probes") && /* @__PURE__ */ a$1(ProbesPart, {})
		]
	});
}
var NAMES = {
	selfsim: "self-similarity",
	intrasim: "intra-sentence",
	anisotropy: "anisotropy",
	mev: "of a word (MEV)",
	top_component: "of the layer",
	participation_ratio: "participation ratio",
	effective_rank: "effective rank",
	mean_norm: "mean norm"
};
/** Measures of one unit share a chart. */
var PANELS = [
	{
		title: "Similarity",
		label: "mean cosine",
		metrics: [
			"selfsim",
			"intrasim",
			"anisotropy"
		]
	},
	{
		title: "Variance of the first component",
		label: "share of variance",
		metrics: ["mev", "top_component"]
	},
	{
		title: "Dimensions in use",
		label: "dimensions",
		metrics: ["participation_ratio", "effective_rank"]
	},
	{
		title: "Length of vectors",
		label: "norm",
		metrics: ["mean_norm"]
	}
];
function GeometryPart() {
	const { index, values } = useApp();
	const answer = useQuery("geometry", { store: index }, { progress: true });
	return /* @__PURE__ */ a$1("section", {
		class: "tile",
		children: [/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: [/* @__PURE__ */ a$1("h2", { children: "Geometry" }), /* @__PURE__ */ a$1(ExportMenu, {
				name: "geometry",
				params: { store: index }
			})]
		}), /* @__PURE__ */ a$1(Answer, {
			of: answer,
			what: "the geometry",
			children: (found) => /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("div", {
				class: "panels",
				children: PANELS.map(({ title, label, metrics }) => {
					const rows = found.rows.filter((row) => metrics.includes(row.metric));
					return rows.length > 0 && /* @__PURE__ */ a$1("section", { children: [/* @__PURE__ */ a$1("div", {
						class: "toolbar tight",
						children: [/* @__PURE__ */ a$1("h3", { children: title }), /* @__PURE__ */ a$1(PictureButtons, { name: title })]
					}), /* @__PURE__ */ a$1(LayerCurves, {
						title: `${title} by layer`,
						label,
						height: 210,
						layer: values.layer ? Number(values.layer) : void 0,
						points: rows.map((row) => ({
							...row,
							series: NAMES[row.metric]
						})),
						series: metrics.map((metric) => NAMES[metric])
					})] }, title);
				})
			}), /* @__PURE__ */ a$1(PythonCall, { code: found.python })] })
		})]
	});
}
function CkaPart() {
	const { index, stores, store, values, go } = useApp();
	const other = values.other === void 0 ? void 0 : Math.min(Number(values.other) || 0, stores.length - 1);
	const params = {
		store: index,
		other
	};
	const answer = useQuery("cka", params, { progress: true });
	return /* @__PURE__ */ a$1("section", {
		class: "tile",
		children: [/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: [
				/* @__PURE__ */ a$1("h2", { children: "Similarity of layers (CKA)" }),
				stores.length > 1 && /* @__PURE__ */ a$1("label", {
					class: "field",
					children: [/* @__PURE__ */ a$1("span", { children: "with" }), /* @__PURE__ */ a$1("select", {
						value: String(other ?? index),
						onChange: (event) => go({ other: event.currentTarget.value === String(index) ? null : event.currentTarget.value }),
						children: stores.map((one, at) => /* @__PURE__ */ a$1("option", {
							value: String(at),
							children: at === index ? "itself" : one.name
						}, at))
					})]
				}),
				/* @__PURE__ */ a$1(ExportMenu, {
					name: "cka",
					params,
					picture: true
				})
			]
		}), /* @__PURE__ */ a$1(Answer, {
			of: answer,
			what: "the similarity of layers",
			children: (found) => /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1(HeatMap, {
				title: "Linear CKA between layers",
				rows: found.a,
				columns: found.b,
				values: found.values,
				domain: [0, 1],
				rowLabel: other === void 0 ? "layer" : `layer of ${store.name}`,
				columnLabel: other === void 0 ? "layer" : `layer of ${stores[other].name}`
			}), /* @__PURE__ */ a$1(PythonCall, { code: found.python })] })
		})]
	});
}
function ProbesPart() {
	const { index } = useApp();
	const answer = useQuery("probes", { store: index });
	return /* @__PURE__ */ a$1("section", {
		class: "tile wide",
		children: [/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: [/* @__PURE__ */ a$1("h2", { children: "Probes" }), /* @__PURE__ */ a$1(ExportMenu, {
				name: "probes",
				params: { store: index }
			})]
		}), /* @__PURE__ */ a$1(Answer, {
			of: answer,
			what: "probe results",
			children: (found) => /* @__PURE__ */ a$1($, { children: [
				found.results.length === 0 && /* @__PURE__ */ a$1(Empty, {
					title: "No probe results",
					children: "Results that are saved next to the store appear here by layer."
				}),
				/* @__PURE__ */ a$1("div", {
					class: "tiles",
					children: found.results.map((result) => /* @__PURE__ */ a$1(ProbeResult, { ...result }, result.name))
				}),
				found.results.length > 0 && /* @__PURE__ */ a$1(PythonCall, { code: found.python })
			] })
		})]
	});
}
var number$1 = (value) => typeof value === "number";
function ProbeResult({ name, kind, rows }) {
	const points = rows.filter((row) => number$1(row.layer) && number$1(row.value)).map((row) => ({
		layer: row.layer,
		value: row.value,
		low: row.low,
		high: row.high,
		series: [
			row.task,
			row.metric,
			row.item
		].filter(Boolean).join(" ") || kind
	}));
	const columns = Object.keys(rows[0] ?? {}).filter((column) => rows.some((row) => row[column] != null && row[column] !== ""));
	return /* @__PURE__ */ a$1("section", {
		class: "tile",
		children: [
			/* @__PURE__ */ a$1("div", {
				class: "toolbar tight",
				children: [/* @__PURE__ */ a$1("h3", { children: [
					name,
					" ",
					/* @__PURE__ */ a$1("span", {
						class: "tag",
						children: kind
					})
				] }), /* @__PURE__ */ a$1(PictureButtons, { name })]
			}),
			points.length > 0 && new Set(points.map((point) => point.series)).size <= 8 && /* @__PURE__ */ a$1(LayerCurves, {
				title: `${name} by layer`,
				label: "value",
				height: 220,
				points
			}),
			/* @__PURE__ */ a$1("details", { children: [/* @__PURE__ */ a$1("summary", { children: [rows.length.toLocaleString("en"), " numbers"] }), /* @__PURE__ */ a$1(Table, {
				label: name,
				rows: rows.slice(0, 500),
				id: (row) => JSON.stringify(row),
				columns: columns.map((column) => ({
					name: column,
					title: column,
					class: rows.some((row) => number$1(row[column])) ? "number" : "value",
					cell: (row) => number$1(row[column]) && !Number.isInteger(row[column]) ? row[column].toFixed(4) : row[column]
				}))
			})] })
		]
	});
}
var layers = {
	name: "layers",
	title: "Layers",
	needs: ["geometry"],
	component: LayersView
};
// src/map/density.ts
var FAINT = .15;
var LEAST$1 = 90;
var Density = class {
	sums = /* @__PURE__ */ new Float32Array(0);
	pixels = /* @__PURE__ */ new Uint8Array(0);
	/** The points inside the last picture: how many, and which, as far as there is room. */
	n_seen = 0;
	seen;
	constructor(room) {
		this.seen = new Uint32Array(room);
	}
	/** Counts every `step`th point; `colors` by code, null for hidden ones. Pixels are premultiplied, the top row first. */
	count({ x, y, codes, flags }, colors, frame, step) {
		const { width, height, scale, left, top } = frame;
		if (this.sums.length !== 4 * width * height) [this.sums, this.pixels] = [new Float32Array(4 * width * height), new Uint8Array(4 * width * height)];
		const { sums, seen } = this;
		sums.fill(0);
		const shown = Uint8Array.from(colors, (each) => each ? 1 : 0);
		const parts = Float32Array.from(colors.flatMap((each) => each ?? [
			0,
			0,
			0
		]));
		let found = 0;
		for (let i = 0; i < x.length; i += step) {
			const across = x[i] * scale + left;
			const down = top - y[i] * scale;
			const code = codes[i];
			if (!(across >= 0 && across < width && down >= 0 && down < height) || !shown[code]) continue;
			if (found < seen.length) seen[found] = i;
			found += 1;
			const weight = flags.length && !flags[i] ? FAINT : 1;
			const at = 4 * ((down | 0) * width + (across | 0));
			sums[at] += weight * parts[3 * code];
			sums[at + 1] += weight * parts[3 * code + 1];
			sums[at + 2] += weight * parts[3 * code + 2];
			sums[at + 3] += weight;
		}
		this.n_seen = found * step;
	}
	/** Turns the counts into pixels, whose opacity is the logarithm of the count. */
	paint() {
		const { sums, pixels } = this;
		let most = 1;
		for (let at = 3; at < sums.length; at += 4) if (sums[at] > most) most = sums[at];
		const gain = 165 / Math.log(most + 1);
		for (let at = 0; at < sums.length; at += 4) {
			const count = sums[at + 3];
			const opacity = count ? Math.min(1, count) * LEAST$1 + gain * Math.log(count + 1) : 0;
			const share = count ? Math.min(255, opacity) / (255 * count) : 0;
			pixels[at] = sums[at] * share;
			pixels[at + 1] = sums[at + 1] * share;
			pixels[at + 2] = sums[at + 2] * share;
			pixels[at + 3] = Math.min(255, opacity);
		}
	}
};
// src/map/scatter.ts
/** Points drawn by WebGL: their own renderer, as those of the packages compile code at run time, which the page forbids. */
var VERTEX = `#version 300 es
in float xa; in float ya; in float xb; in float yb; in uint code; in uint flag;
uniform float t, size, alpha; uniform vec2 scale, offset; uniform vec4 colors[10]; uniform bool selecting; uniform vec3 marked;
out vec4 color;
void main() {
  vec4 own = colors[min(int(code), 9)];
  bool chosen = flag == 1u;
  gl_Position = own.a == 0.0 ? vec4(2.0, 2.0, 2.0, 1.0)
    : vec4(mix(vec2(xa, ya), vec2(xb, yb), t) * scale + offset, 0.0, 1.0);
  gl_PointSize = chosen ? size + 2.0 : size;
  color = vec4(own.rgb, selecting ? (chosen ? 1.0 : alpha * 0.25) : alpha);
}`;
var FRAGMENT = `#version 300 es
precision highp float;
in vec4 color; out vec4 drawn; uniform float size;
void main() {
  float edge = length(gl_PointCoord - 0.5);
  if (size > 2.5 && edge > 0.5) discard;
  drawn = vec4(color.rgb * color.a, color.a);
}`;
var PICTURE = `#version 300 es
out vec2 at;
void main() {
  at = vec2(gl_VertexID & 1, gl_VertexID >> 1);
  gl_Position = vec4(2.0 * at.x - 1.0, 1.0 - 2.0 * at.y, 0.0, 1.0);
}`;
var COPY = `#version 300 es
precision highp float;
in vec2 at; out vec4 drawn; uniform sampler2D picture;
void main() { drawn = texture(picture, at); }`;
var MANY = 25e4;
var COARSE = 5e5;
var SETTLED = 150;
var Scatter = class {
	canvas;
	gl;
	program;
	copy;
	buffers = {};
	colors = [];
	count = 0;
	t = 1;
	frame = 0;
	settling = 0;
	density;
	texture;
	flags = /* @__PURE__ */ new Uint8Array(0);
	x = /* @__PURE__ */ new Float32Array(0);
	y = /* @__PURE__ */ new Float32Array(0);
	fromX = this.x;
	fromY = this.y;
	codes = /* @__PURE__ */ new Uint8Array(0);
	sight = {
		x: 0,
		y: 0,
		zoom: 1
	};
	/** Called after each picture, for what lies over it. */
	drawn = () => {};
	/** Throws where the browser has no WebGL 2. */
	constructor(canvas) {
		this.canvas = canvas;
		const gl = canvas.getContext("webgl2", {
			antialias: false,
			premultipliedAlpha: true,
			preserveDrawingBuffer: true
		});
		if (!gl) throw new Error("This browser has no WebGL 2, which maps need: switch hardware acceleration on, or use another browser. The table shows the same occurrences.");
		this.gl = gl;
		this.program = program(gl, VERTEX, FRAGMENT);
		this.copy = program(gl, PICTURE, COPY);
		gl.enable(gl.BLEND);
		gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
	}
	/** Puts points where they are; `animate`: they move there from where they were, in milliseconds. */
	setPoints(x, y, animate = 0) {
		const moves = animate > 0 && x.length === this.count && this.count > 0;
		this.fromX = moves ? this.x : x;
		this.fromY = moves ? this.y : y;
		[this.x, this.y, this.count] = [
			x,
			y,
			x.length
		];
		if (this.count <= MANY) this.place(this.fromX, this.fromY, x, y);
		if (this.codes.length !== this.count) this.setCodes(new Uint8Array(this.count).fill(9));
		this.select(null);
		this.t = moves ? 0 : 1;
		const began = performance.now();
		const step = () => {
			this.t = Math.min(1, (performance.now() - began) / animate);
			this.t = this.t * this.t * (3 - 2 * this.t);
			this.paint();
			if (this.t < 1) this.frame = requestAnimationFrame(step);
		};
		cancelAnimationFrame(this.frame);
		if (moves) this.frame = requestAnimationFrame(step);
		else this.draw();
	}
	/** The number of each point's colour, `NONE` for none. */
	setCodes(codes) {
		this.codes = codes;
		if (this.count <= MANY) this.bytes("code", codes);
		this.draw();
	}
	/** The colours by number, null for hidden points; the last is that of points without one. */
	setColors(colors, none) {
		this.colors = [
			...colors.slice(0, 9),
			...Array(Math.max(0, 9 - colors.length)).fill(null),
			none
		];
		this.draw();
	}
	/** Whether a point's colour is shown. */
	visible(point) {
		return Boolean(this.colors[Math.min(this.codes[point], 9)]);
	}
	/** Brings some points out, null for none. */
	select(points) {
		this.flags = new Uint8Array(points?.length ? this.count : 0);
		if (points) for (let i = 0; i < points.length; i++) this.flags[points[i]] = 1;
		if (this.count <= MANY) this.bytes("flag", this.flags.length ? this.flags : new Uint8Array(this.count));
		this.draw();
	}
	place(fromX, fromY, x, y) {
		for (const [name, values] of [
			["xa", fromX],
			["ya", fromY],
			["xb", x],
			["yb", y]
		]) this.floats(name, values);
	}
	floats(name, values) {
		const { gl } = this;
		const place = gl.getAttribLocation(this.program, name);
		gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name] ??= gl.createBuffer());
		gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
		gl.enableVertexAttribArray(place);
		gl.vertexAttribPointer(place, 1, gl.FLOAT, false, 0, 0);
	}
	bytes(name, values) {
		const { gl } = this;
		const place = gl.getAttribLocation(this.program, name);
		gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name] ??= gl.createBuffer());
		gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
		gl.enableVertexAttribArray(place);
		gl.vertexAttribIPointer(place, 1, gl.UNSIGNED_BYTE, 0, 0);
	}
	/** Draws at the next frame while what is seen changes: of very many points some, and all once it rests. */
	moved() {
		if (this.count <= MANY) return this.draw();
		cancelAnimationFrame(this.frame);
		clearTimeout(this.settling);
		this.frame = requestAnimationFrame(() => this.paint(true));
		this.settling = setTimeout(() => this.paint(), SETTLED);
	}
	/** Draws at the next frame. */
	draw() {
		if (this.t < 1) return;
		cancelAnimationFrame(this.frame);
		this.frame = requestAnimationFrame(() => this.paint());
	}
	/** Pixels of the screen by unit of the map. */
	get unit() {
		return .47 * Math.min(this.canvas.clientWidth, this.canvas.clientHeight) * this.sight.zoom;
	}
	toScreen(x, y) {
		return [this.canvas.clientWidth / 2 + (x - this.sight.x) * this.unit, this.canvas.clientHeight / 2 - (y - this.sight.y) * this.unit];
	}
	toMap(px, py) {
		return [this.sight.x + (px - this.canvas.clientWidth / 2) / this.unit, this.sight.y - (py - this.canvas.clientHeight / 2) / this.unit];
	}
	/** Points become smaller and clearer the more of them there are, so that their density shows. */
	look(seen) {
		const size = Math.max(1.5, Math.min(9, 60 / Math.pow(Math.max(seen, 1), .3)));
		const cover = seen * size * size / (this.canvas.clientWidth * this.canvas.clientHeight + 1);
		return {
			size,
			alpha: Math.max(.04, Math.min(.85, .9 / (1 + 3 * cover)))
		};
	}
	paint(moving = false) {
		const { gl, canvas } = this;
		const ratio = devicePixelRatio || 1;
		const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
		if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
		gl.viewport(0, 0, width, height);
		gl.clearColor(0, 0, 0, 0);
		gl.clear(gl.COLOR_BUFFER_BIT);
		if (this.count && width && height) {
			if (this.count <= MANY) this.points(this.count, this.count / Math.max(1, this.sight.zoom * this.sight.zoom));
			else this.cloud(moving);
		}
		this.drawn();
	}
	/** Draws the first points of the buffers, of which so many are seen. */
	points(count, seen) {
		const { gl, canvas } = this;
		gl.useProgram(this.program);
		const at = (name) => gl.getUniformLocation(this.program, name);
		const scale = [2 * this.unit / canvas.clientWidth, 2 * this.unit / canvas.clientHeight];
		const { size, alpha } = this.look(seen);
		gl.uniform1f(at("t"), this.t);
		gl.uniform1f(at("size"), size * (devicePixelRatio || 1));
		gl.uniform1f(at("alpha"), alpha);
		gl.uniform2f(at("scale"), ...scale);
		gl.uniform2f(at("offset"), -this.sight.x * scale[0], -this.sight.y * scale[1]);
		gl.uniform4fv(at("colors"), this.colors.flatMap((rgb) => rgb ? [...rgb.map((part) => part / 255), 1] : [
			0,
			0,
			0,
			0
		]));
		gl.uniform1i(at("selecting"), this.flags.length ? 1 : 0);
		gl.drawArrays(gl.POINTS, 0, count);
	}
	/** Draws very many points: their density, or where few are seen these one by one. */
	cloud(moving) {
		const { gl } = this;
		const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
		const own = this.density ??= new Density(MANY);
		const step = moving ? Math.max(1, Math.floor(own.n_seen / COARSE)) : 1;
		const frame = {
			width,
			height,
			scale: this.unit,
			left: width / 2 - this.sight.x * this.unit,
			top: height / 2 + this.sight.y * this.unit
		};
		own.count(this, this.colors, frame, step);
		if (own.n_seen <= MANY) {
			const seen = own.seen.subarray(0, own.n_seen);
			const [x, y] = [Float32Array.from(seen, (i) => this.x[i]), Float32Array.from(seen, (i) => this.y[i])];
			this.place(x, y, x, y);
			this.bytes("code", Uint8Array.from(seen, (i) => this.codes[i]));
			this.bytes("flag", Uint8Array.from(seen, (i) => this.flags[i] ?? 0));
			return this.points(seen.length, seen.length);
		}
		own.paint();
		gl.useProgram(this.copy);
		this.texture ??= gl.createTexture();
		gl.bindTexture(gl.TEXTURE_2D, this.texture);
		gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, width, height, 0, gl.RGBA, gl.UNSIGNED_BYTE, own.pixels);
		for (const side of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, side, gl.CLAMP_TO_EDGE);
		for (const way of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, way, gl.NEAREST);
		gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
	}
	close() {
		cancelAnimationFrame(this.frame);
		clearTimeout(this.settling);
		this.gl.getExtension("WEBGL_lose_context")?.loseContext();
	}
};
function program(gl, vertex, fragment) {
	const made = gl.createProgram();
	for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
		const shader = gl.createShader(kind);
		gl.shaderSource(shader, text);
		gl.compileShader(shader);
		gl.attachShader(made, shader);
	}
	gl.linkProgram(made);
	if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(`WebGL cannot draw points: ${gl.getProgramInfoLog(made)}`);
	return made;
}
var CELLS = 256;
/** Finds points by where they are. */
var Grid = class {
	x;
	y;
	starts = /* @__PURE__ */ new Uint32Array(65537);
	order;
	constructor(x, y) {
		this.x = x;
		this.y = y;
		this.order = new Uint32Array(x.length);
		const cells = new Uint16Array(x.length);
		for (let i = 0; i < x.length; i++) {
			cells[i] = cell(x[i]) * CELLS + cell(y[i]);
			this.starts[cells[i] + 1]++;
		}
		for (let i = 0; i < CELLS * CELLS; i++) this.starts[i + 1] += this.starts[i];
		const next = this.starts.slice();
		for (let i = 0; i < x.length; i++) this.order[next[cells[i]]++] = i;
	}
	/** The nearest point to a place, no farther than `reach`, of those that are `wanted`; -1 for none. */
	nearest(x, y, reach, wanted) {
		let [best, least] = [-1, reach * reach];
		this.each(x - reach, x + reach, y - reach, y + reach, (point) => {
			const far = (this.x[point] - x) ** 2 + (this.y[point] - y) ** 2;
			if (far < least && wanted(point)) [best, least] = [point, far];
		});
		return best;
	}
	/** The points inside a polygon, ascending. */
	inside(polygon, wanted) {
		const [xs, ys] = [polygon.map((one) => one[0]), polygon.map((one) => one[1])];
		const found = [];
		this.each(Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys), (point) => {
			if (contains(xs, ys, this.x[point], this.y[point]) && wanted(point)) found.push(point);
		});
		return Uint32Array.from(found).sort();
	}
	each(left, right, low, high, visit) {
		for (let column = cell(left); column <= cell(right); column++) for (let row = cell(low); row <= cell(high); row++) {
			const place = column * CELLS + row;
			for (let at = this.starts[place]; at < this.starts[place + 1]; at++) visit(this.order[at]);
		}
	}
};
var cell = (value) => Math.max(0, Math.min(255, Math.floor((value + 1.25) / 2.5 * CELLS)));
function contains(xs, ys, x, y) {
	let odd = false;
	for (let i = 0, j = xs.length - 1; i < xs.length; j = i++) if (ys[i] > y !== ys[j] > y && x < (xs[j] - xs[i]) * (y - ys[i]) / (ys[j] - ys[i]) + xs[i]) odd = !odd;
	return odd;
}
// src/map/canvas.tsx
var MOVES = 2e5;
var REACH = 10;
var palette = (element, ordered, count) => {
	const probe = element.appendChild(document.createElement("span"));
	const read = (value) => {
		probe.style.color = value;
		const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
		return [
			r,
			g,
			b
		];
	};
	const ends = [read("var(--map-low)"), read("var(--map-high)")];
	const mixed = (share) => [
		0,
		1,
		2
	].map((i) => ends[0][i] * (1 - share) + ends[1][i] * share);
	const colors = Array.from({ length: Math.min(9, Math.max(count, 1)) }, (_, number) => ordered ? mixed(count > 1 ? number / (count - 1) : 0) : read(`var(--c${number % 8})`));
	const none = read(count ? "var(--map-none)" : "var(--c0)");
	probe.remove();
	return {
		colors,
		none
	};
};
/** The colour of a category or a step of a scale, as CSS. */
var swatch = (number, count, ordered) => number < 0 ? "var(--map-none)" : ordered ? `color-mix(in srgb, var(--map-high) ${count > 1 ? 100 * number / (count - 1) : 0}%, var(--map-low))` : `var(--c${number % 8})`;
/** Points by WebGL under an <svg> of names, marks and the lasso. */
function MapCanvas(props) {
	const { points, hidden, n_colors: count, ordered, row, lasso } = props;
	const box = T(null);
	const canvas = T(null);
	const over = T(null);
	const scatter = T(null);
	const grid = T(null);
	const [error, setError] = d$2();
	const [drawing, setDrawing] = d$2(false);
	const draft = T([]);
	const last = T(props);
	last.current = props;
	A$2(() => {
		try {
			scatter.current = new Scatter(canvas.current);
		} catch (problem) {
			return setError(problem.message);
		}
		scatter.current.drawn = () => annotate(over.current, scatter.current, last.current, draft.current);
		props.picture.current = () => composed(scatter.current, over.current);
		const watch = new ResizeObserver(() => scatter.current.draw());
		watch.observe(box.current);
		const wheel = (event) => {
			event.preventDefault();
			zoomAt(scatter.current, Math.exp(-event.deltaY * (event.deltaMode ? .05 : .002)), event.offsetX, event.offsetY);
		};
		box.current.addEventListener("wheel", wheel, { passive: false });
		return () => {
			watch.disconnect();
			scatter.current.close();
			props.picture.current = null;
		};
	}, []);
	A$2(() => {
		if (!scatter.current) return;
		const still = points.x.length > MOVES || matchMedia("(prefers-reduced-motion: reduce)").matches;
		scatter.current.setPoints(points.x, points.y, still ? 0 : 600);
		grid.current = null;
	}, [points.x, points.y]);
	const found = () => grid.current ??= new Grid(last.current.points.x, last.current.points.y);
	A$2(() => {
		if (!scatter.current) return;
		const codes = new Uint8Array(points.color.length);
		for (let i = 0; i < codes.length; i++) codes[i] = points.color[i] < 0 ? 9 : points.color[i];
		scatter.current.setCodes(codes);
	}, [points.color]);
	A$2(() => {
		if (!scatter.current) return;
		const { colors, none } = palette(box.current, ordered, count);
		scatter.current.setColors(colors.map((rgb, number) => number >= count || hidden.has(number) ? null : rgb), hidden.has(-1) ? null : none);
	}, [
		hidden,
		count,
		ordered,
		dark.value,
		points
	]);
	A$2(() => {
		if (!scatter.current) return;
		const inside = lasso && found().inside(lasso, (point) => scatter.current.visible(point));
		scatter.current.select(inside);
		props.chosen(inside);
	}, [
		lasso,
		points.x,
		points.color,
		hidden
	]);
	A$2(() => scatter.current?.draw(), [row, points.regions]);
	const at = (event) => {
		const { left, top } = box.current.getBoundingClientRect();
		return [event.clientX - left, event.clientY - top];
	};
	const near = (px, py) => {
		const one = scatter.current;
		if (!one) return -1;
		return found().nearest(...one.toMap(px, py), REACH / one.unit, (point) => one.visible(point));
	};
	const drag = T(null);
	const down = (event) => {
		if (event.button || !scatter.current) return;
		box.current.setPointerCapture(event.pointerId);
		const [x, y] = at(event);
		drag.current = {
			x,
			y,
			moved: false,
			lasso: drawing || event.shiftKey
		};
		draft.current = drag.current.lasso ? [scatter.current.toMap(x, y)] : [];
	};
	const move = (event) => {
		const one = scatter.current;
		if (!one) return;
		const [x, y] = at(event);
		const held = drag.current;
		if (!held) {
			const point = near(x, y);
			return props.hover(point < 0 ? null : points.row[point]);
		}
		if (!held.moved && Math.hypot(x - held.x, y - held.y) < 4) return;
		held.moved = true;
		if (held.lasso) draft.current.push(one.toMap(x, y));
		else {
			one.sight.x -= (x - held.x) / one.unit;
			one.sight.y += (y - held.y) / one.unit;
			[held.x, held.y] = [x, y];
		}
		one.moved();
	};
	const up = (event) => {
		const held = drag.current;
		drag.current = null;
		if (!held || !scatter.current) return;
		if (held.lasso) {
			const outline = thinned(draft.current);
			draft.current = [];
			setDrawing(false);
			props.setLasso(outline.length > 2 ? outline : null);
			scatter.current.draw();
		} else if (!held.moved) {
			const point = near(...at(event));
			if (point >= 0) props.pick(points.row[point]);
		}
	};
	const zoom = (factor) => scatter.current && zoomAt(scatter.current, factor);
	const pan = (x, y) => {
		const one = scatter.current;
		if (!one) return;
		one.sight.x += x * 60 / one.unit;
		one.sight.y += y * 60 / one.unit;
		one.moved();
	};
	const reset = () => {
		if (!scatter.current) return;
		scatter.current.sight = {
			x: 0,
			y: 0,
			zoom: 1
		};
		scatter.current.draw();
	};
	const keys = {
		"+": () => zoom(1.4),
		"=": () => zoom(1.4),
		"-": () => zoom(1 / 1.4),
		"0": reset,
		ArrowLeft: () => pan(-1, 0),
		ArrowRight: () => pan(1, 0),
		ArrowUp: () => pan(0, 1),
		ArrowDown: () => pan(0, -1),
		Escape: () => {
			setDrawing(false);
			props.setLasso(null);
		}
	};
	if (error) return /* @__PURE__ */ a$1("div", {
		class: "state error",
		role: "alert",
		children: [/* @__PURE__ */ a$1("strong", { children: "No map" }), /* @__PURE__ */ a$1("p", { children: error })]
	});
	return /* @__PURE__ */ a$1("div", {
		class: "map-frame",
		children: [/* @__PURE__ */ a$1("div", {
			ref: box,
			class: drawing ? "map-box drawing" : "map-box",
			tabIndex: 0,
			role: "application",
			"aria-label": `Map of ${points.x.length} points: arrow keys move, plus and minus zoom, 0 shows all; the table below lists the points`,
			onPointerDown: down,
			onPointerMove: move,
			onPointerUp: up,
			onPointerLeave: () => props.hover(null),
			onKeyDown: (event) => {
				const act = keys[event.key];
				if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
				event.preventDefault();
				act();
			},
			children: [/* @__PURE__ */ a$1("canvas", { ref: canvas }), /* @__PURE__ */ a$1("svg", {
				ref: over,
				"aria-hidden": "true"
			})]
		}), /* @__PURE__ */ a$1("div", {
			class: "map-tools",
			role: "group",
			"aria-label": "Map",
			children: [
				/* @__PURE__ */ a$1("button", {
					type: "button",
					"aria-pressed": drawing,
					title: "Draw around points (or hold Shift)",
					onClick: () => setDrawing(!drawing),
					children: "Lasso"
				}),
				lasso && /* @__PURE__ */ a$1("button", {
					type: "button",
					onClick: () => props.setLasso(null),
					children: "Clear"
				}),
				/* @__PURE__ */ a$1("button", {
					type: "button",
					"aria-label": "Zoom in",
					onClick: () => zoom(1.4),
					children: "+"
				}),
				/* @__PURE__ */ a$1("button", {
					type: "button",
					"aria-label": "Zoom out",
					onClick: () => zoom(1 / 1.4),
					children: "−"
				}),
				/* @__PURE__ */ a$1("button", {
					type: "button",
					title: "Show all points",
					onClick: reset,
					children: "All"
				})
			]
		})]
	});
}
function zoomAt(one, factor, px = one.canvas.clientWidth / 2, py = one.canvas.clientHeight / 2) {
	const [x, y] = one.toMap(px, py);
	one.sight.zoom = Math.max(.5, Math.min(1e3, one.sight.zoom * factor));
	const [nowX, nowY] = one.toMap(px, py);
	one.sight.x += x - nowX;
	one.sight.y += y - nowY;
	one.moved();
}
/** An outline with at most 48 corners of three decimals, so that an address holds it. */
function thinned(outline) {
	const step = Math.max(1, outline.length / 48);
	return Array.from({ length: Math.floor(outline.length / step) }, (_, i) => outline[Math.floor(i * step)]).map(([x, y]) => [Number(x.toFixed(3)), Number(y.toFixed(3))]);
}
var SVG = "http://www.w3.org/2000/svg";
/** Draws the names of regions that do not touch, the outline of the lasso and the row that is brought out. */
function annotate(svg, one, props, draft) {
	const add = (kind, attributes, text) => {
		const element = document.createElementNS(SVG, kind);
		for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
		if (text !== void 0) element.textContent = text;
		return svg.appendChild(element);
	};
	svg.replaceChildren();
	const [width, height] = [one.canvas.clientWidth, one.canvas.clientHeight];
	const taken = [];
	for (const region of props.points.regions) {
		const [x, y] = one.toScreen(region.x, region.y);
		const half = 3.9 * region.name.length + 4;
		if (!region.name || x < 0 || y < 12 || x > width || y > height - 4) continue;
		if (taken.some(([otherX, otherY, other]) => Math.abs(otherX - x) < half + other && Math.abs(otherY - y) < 17)) continue;
		taken.push([
			x,
			y,
			half
		]);
		add("text", {
			x: Math.max(half, Math.min(width - half, x)),
			y,
			class: "region"
		}, region.name);
	}
	const outline = draft.length ? draft : props.lasso;
	if (outline) add("polygon", {
		points: outline.map(([x, y]) => one.toScreen(x, y).join(",")).join(" "),
		class: "lasso"
	});
	const point = props.row === void 0 ? -1 : props.points.row.indexOf(props.row);
	if (point >= 0) {
		const [x, y] = one.toScreen(props.points.x[point], props.points.y[point]);
		add("circle", {
			cx: x,
			cy: y,
			r: 8,
			class: "found"
		});
	}
}
/** The points and what lies over them in one picture. */
function composed(one, over) {
	one.paint();
	const picture = document.createElement("canvas");
	[picture.width, picture.height] = [one.canvas.width, one.canvas.height];
	const ratio = picture.width / one.canvas.clientWidth;
	const context = picture.getContext("2d");
	const style = getComputedStyle(document.body);
	context.fillStyle = style.backgroundColor;
	context.fillRect(0, 0, picture.width, picture.height);
	context.drawImage(one.canvas, 0, 0);
	context.scale(ratio, ratio);
	context.textAlign = "center";
	context.lineJoin = "round";
	for (const text of over.querySelectorAll("text")) {
		context.font = `600 12px ${style.fontFamily}`;
		context.strokeStyle = style.backgroundColor;
		context.lineWidth = 4;
		context.strokeText(text.textContent, Number(text.getAttribute("x")), Number(text.getAttribute("y")));
		context.fillStyle = style.color;
		context.fillText(text.textContent, Number(text.getAttribute("x")), Number(text.getAttribute("y")));
	}
	return picture;
}
// src/parts/concordance.tsx
/** Occurrences as keywords in context. Each leads to its sentence, its neighbours and its place on the map. */
function Concordance({ rows, columns = [], extra = [], sortable = false, label = "Occurrences" }) {
	const sort = (name) => sortable ? name : void 0;
	return /* @__PURE__ */ a$1(Table, {
		label,
		columns: [
			...extra,
			{
				name: "left",
				title: "Left",
				sort: sort("left"),
				class: "left",
				cell: (row) => /* @__PURE__ */ a$1("bdi", {
					class: "context",
					children: row.left
				})
			},
			{
				name: "word",
				title: "Word",
				sort: sort("word"),
				class: "word",
				cell: (row) => /* @__PURE__ */ a$1(Link, {
					to: {
						view: "sentence",
						row: row.row,
						sentence: row.sentence
					},
					title: "Open the sentence",
					children: /* @__PURE__ */ a$1("bdi", { children: row.word })
				})
			},
			{
				name: "right",
				title: "Right",
				sort: sort("right"),
				class: "right",
				cell: (row) => /* @__PURE__ */ a$1("bdi", {
					class: "context",
					children: row.right
				})
			},
			...columns.map((column) => ({
				name: column.name,
				title: column.name,
				sort: sort(column.name),
				class: "value",
				cell: (row) => /* @__PURE__ */ a$1("bdi", { children: row.labels[column.name] ?? "" })
			})),
			{
				name: "links",
				title: /* @__PURE__ */ a$1("span", {
					class: "sr",
					children: "Links"
				}),
				class: "links",
				cell: (row) => /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1(Link, {
					to: {
						view: "neighbors",
						row: row.row,
						word: null,
						text: null,
						offset: null
					},
					label: `Neighbours of row ${row.row}`,
					children: "similar"
				}), /* @__PURE__ */ a$1(Link, {
					to: {
						view: "map",
						row: row.row,
						word: row.word,
						offset: null
					},
					label: `Row ${row.row} on the map`,
					children: "map"
				})] })
			}
		],
		rows,
		id: (row) => row.row
	});
}
/** The end of a text, cut at a space. */
function ending(text, size) {
	return text.length <= size ? text : `…${text.slice(text.indexOf(" ", text.length - size))}`;
}
// src/parts/filters.tsx
var column = (name) => /^[a-z_]\w*$/i.test(name) ? name : `"${name.replace(/"/g, "\"\"")}"`;
var text = (value) => `'${value.replace(/'/g, "''")}'`;
/** The condition on labels and fields, in SQL as in `where`, with a menu that writes it. */
function Filters() {
	const { store, values, go } = useApp();
	const [draft, setDraft] = d$2(values.where ?? "");
	A$2(() => setDraft(values.where ?? ""), [values.where]);
	const apply = (where) => go({
		where,
		offset: null
	});
	const example = store.labels[0];
	return /* @__PURE__ */ a$1("form", {
		class: "field",
		onSubmit: (event) => {
			event.preventDefault();
			apply(draft.trim());
		},
		children: [
			/* @__PURE__ */ a$1("label", {
				class: "grow",
				children: [/* @__PURE__ */ a$1("span", { children: "Where" }), /* @__PURE__ */ a$1("input", {
					type: "text",
					class: "mono",
					spellcheck: false,
					autocomplete: "off",
					placeholder: example ? `${column(example.name)} = ${text(example.values[0] ?? "…")}` : "position < 3",
					value: draft,
					onInput: (event) => setDraft(event.currentTarget.value),
					onKeyDown: (event) => event.key === "Escape" && setDraft(values.where ?? "")
				})]
			}),
			store.labels.length > 0 && /* @__PURE__ */ a$1("select", {
				"aria-label": "Add a condition on a label",
				class: "narrow",
				value: "",
				onChange: (event) => {
					const condition = event.currentTarget.value;
					event.currentTarget.value = "";
					apply([values.where, condition].filter(Boolean).join(" AND "));
				},
				children: [/* @__PURE__ */ a$1("option", {
					value: "",
					children: "+ label"
				}), store.labels.map((layer) => /* @__PURE__ */ a$1("optgroup", {
					label: layer.name,
					children: layer.values.slice(0, 200).map((value) => /* @__PURE__ */ a$1("option", {
						value: `${column(layer.name)} = ${text(value)}`,
						children: value
					}, value))
				}, layer.name))]
			}),
			(values.where || draft) && /* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				onClick: () => {
					setDraft("");
					apply("");
				},
				children: "Clear"
			})
		]
	});
}
// src/parts/layer_slider.tsx
/** Chooses a layer of the store: the arrow keys move it too. */
function LayerSlider({ label = "Layer" }) {
	const { store, layer, go } = useApp();
	const last = store.layers.length - 1;
	return /* @__PURE__ */ a$1("label", {
		class: "slider",
		children: [
			/* @__PURE__ */ a$1("span", { children: label }),
			/* @__PURE__ */ a$1("input", {
				type: "range",
				min: 0,
				max: last,
				step: 1,
				value: store.layers.indexOf(layer),
				"aria-valuetext": `layer ${layer}`,
				onInput: (event) => go({ layer: store.layers[Number(event.currentTarget.value)] }, { replace: true })
			}),
			/* @__PURE__ */ a$1("output", { children: layer })
		]
	});
}
// src/parts/word_box.tsx
/** A text box that completes words: the arrow keys move through them, Enter takes one, Escape closes the list. */
function WordBox({ label, value, placeholder, choose }) {
	const { source, index } = useApp();
	const [text, setText] = d$2(value);
	const [{ of, words: found }, setFound] = d$2({ words: [] });
	const [open, setOpen] = d$2(false);
	const [active, setActive] = d$2(-1);
	const id = P();
	const list = T(null);
	A$2(() => setText(value), [value]);
	A$2(() => {
		if (!open || text.includes(" ") || !source.has("complete")) return setFound({ words: [] });
		const abort = new AbortController();
		source.query("complete", {
			store: index,
			prefix: text,
			limit: 20
		}, { signal: abort.signal }).then((answer) => {
			setFound({
				of: text,
				words: answer.words
			});
			setActive(-1);
		}, () => abort.signal.aborted || setFound({
			of: text,
			words: []
		}));
		return () => abort.abort();
	}, [
		text,
		open,
		index,
		source
	]);
	A$2(() => list.current?.children[active]?.scrollIntoView({ block: "nearest" }), [active]);
	const take = (chosen) => {
		setText(chosen);
		setOpen(false);
		setActive(-1);
		choose(chosen.trim());
	};
	const shown = open && found.length > 0;
	const keys = (event) => {
		if (event.key === "Enter") {
			event.preventDefault();
			take(found[active]?.word ?? text);
		} else if (event.key === "Escape") {
			if (!open) setText(value);
			setOpen(false);
		} else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
			event.preventDefault();
			if (!open) return setOpen(true);
			const size = found.length + 1;
			setActive((active + 1 + (event.key === "ArrowDown" ? 1 : size - 1)) % size - 1);
		}
	};
	return /* @__PURE__ */ a$1("div", {
		class: "field combo",
		onFocusOut: (event) => event.currentTarget.contains(event.relatedTarget) || setOpen(false),
		children: [
			/* @__PURE__ */ a$1("label", {
				class: "grow",
				children: [/* @__PURE__ */ a$1("span", { children: label }), /* @__PURE__ */ a$1("input", {
					type: "text",
					role: "combobox",
					"aria-expanded": shown,
					"aria-controls": id,
					"aria-autocomplete": "list",
					"aria-activedescendant": shown && active >= 0 ? `${id}-${active}` : void 0,
					dir: "auto",
					spellcheck: false,
					autocomplete: "off",
					placeholder,
					value: text,
					onInput: (event) => {
						setText(event.currentTarget.value);
						setOpen(true);
					},
					onKeyDown: keys,
					onClick: () => setOpen(true)
				})]
			}),
			text && /* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				"aria-label": "Clear",
				onClick: () => take(""),
				children: "×"
			}),
			/* @__PURE__ */ a$1("ul", {
				id,
				role: "listbox",
				"aria-label": "Words",
				ref: list,
				hidden: !shown,
				"aria-busy": shown && of !== text,
				children: found.map(({ word, count }, position) => /* @__PURE__ */ a$1("li", {
					id: `${id}-${position}`,
					role: "option",
					"aria-selected": position === active,
					onMouseDown: (event) => {
						event.preventDefault();
						take(word);
					},
					children: [/* @__PURE__ */ a$1("bdi", { children: word }), /* @__PURE__ */ a$1("span", {
						class: "number",
						children: count.toLocaleString("en")
					})]
				}, word))
			})
		]
	});
}
// src/views/map.tsx
var SIZE$1 = 25;
var FIRST = 1e5;
var SAMPLES = [
	1e4,
	1e5,
	1e6,
	1e7
];
var number = (value) => value.toLocaleString("en");
var percent = (value) => `${(100 * value).toFixed(1)} %`;
function MapView() {
	const { store, index, layer, values, go, source } = useApp();
	const method = values.method === "umap" ? "umap" : "pca";
	const sample = Number(values.sample) || 1e5;
	const color = values.color ?? (values.word ? "cluster" : "word");
	const params = {
		store: index,
		layer,
		word: values.word,
		where: values.where,
		method,
		sample,
		color: color === "none" ? void 0 : color
	};
	const answer = useMap(params);
	const points = w$2(() => answer.value && normalized(answer.value), [answer.value]);
	const meta = answer.value?.meta;
	const [chosen, setChosen] = d$2(null);
	const choose = (some) => {
		setChosen(some);
		source.selected?.(some && Array.from(some, (point) => points.row[point]));
	};
	const [hovered, setHovered] = d$2(null);
	const picture = T(null);
	const lasso = w$2(() => outline(values.lasso), [values.lasso]);
	const hidden = w$2(() => new Set((values.hidden ?? "").split(",").filter(Boolean).map(Number)), [values.hidden]);
	const counts = w$2(() => points && tally(points.color, meta.colors.length), [points]);
	const row = values.row === void 0 ? void 0 : Number(values.row);
	const set = (name, value) => go({
		[name]: value,
		hidden: null,
		lasso: name === "color" ? values.lasso : null,
		offset: null
	});
	const toggle = (code) => {
		const next = new Set(hidden);
		if (!next.delete(code)) next.add(code);
		go({ hidden: [...next].sort().join(",") || null }, { replace: true });
	};
	return /* @__PURE__ */ a$1($, { children: [
		/* @__PURE__ */ a$1("div", {
			class: "toolbar",
			children: [
				/* @__PURE__ */ a$1(WordBox, {
					label: "Word",
					value: values.word ?? "",
					placeholder: "all words",
					choose: (word) => go({
						word,
						row: null,
						color: null,
						lasso: null,
						hidden: null,
						offset: null
					})
				}),
				/* @__PURE__ */ a$1(Filters, {}),
				/* @__PURE__ */ a$1(LayerSlider, {}),
				/* @__PURE__ */ a$1("label", {
					class: "field",
					children: [/* @__PURE__ */ a$1("span", { children: "Method" }), /* @__PURE__ */ a$1("select", {
						value: method,
						onChange: (event) => set("method", event.currentTarget.value),
						children: [/* @__PURE__ */ a$1("option", {
							value: "pca",
							children: "PCA"
						}), /* @__PURE__ */ a$1("option", {
							value: "umap",
							children: "UMAP"
						})]
					})]
				}),
				/* @__PURE__ */ a$1("label", {
					class: "field",
					children: [/* @__PURE__ */ a$1("span", { children: "Colour" }), /* @__PURE__ */ a$1("select", {
						value: color,
						onChange: (event) => set("color", event.currentTarget.value),
						children: [
							/* @__PURE__ */ a$1("option", {
								value: "none",
								children: "none"
							}),
							/* @__PURE__ */ a$1("option", {
								value: "word",
								children: "word"
							}),
							/* @__PURE__ */ a$1("option", {
								value: "cluster",
								children: "cluster"
							}),
							store.labels.map((one) => /* @__PURE__ */ a$1("option", {
								value: one.name,
								children: one.name
							}, one.name)),
							store.fields.map((one) => /* @__PURE__ */ a$1("option", {
								value: one.name,
								children: one.name
							}, one.name))
						]
					})]
				}),
				/* @__PURE__ */ a$1("label", {
					class: "field",
					children: [/* @__PURE__ */ a$1("span", { children: "Sample" }), /* @__PURE__ */ a$1("select", {
						value: String(sample),
						onChange: (event) => set("sample", event.currentTarget.value),
						children: [.../* @__PURE__ */ new Set([...SAMPLES, sample])].sort((one, other) => one - other).map((size) => /* @__PURE__ */ a$1("option", {
							value: String(size),
							children: number(size)
						}, size))
					})]
				})
			]
		}),
		answer.status === "error" ? /* @__PURE__ */ a$1(ErrorState, {
			error: answer.error,
			retry: answer.retry
		}) : !points || !meta ? /* @__PURE__ */ a$1(Loading, {
			what: method === "umap" ? "the map: UMAP takes seconds to minutes, once" : "the map",
			progress: answer.progress
		}) : meta.shown === 0 ? /* @__PURE__ */ a$1(Empty, {
			title: "No point",
			children: "Change the word or the filter."
		}) : /* @__PURE__ */ a$1("div", {
			class: "split map-split",
			children: [/* @__PURE__ */ a$1("section", { children: [
				/* @__PURE__ */ a$1("div", {
					class: answer.status === "loading" ? "answer busy" : "answer",
					"aria-busy": answer.status === "loading",
					children: /* @__PURE__ */ a$1(MapCanvas, {
						points,
						hidden,
						n_colors: meta.colors.length,
						ordered: meta.scale === "ordered",
						row,
						lasso,
						setLasso: (next) => go({
							lasso: next?.map((pair) => pair.join(",")).join(";") ?? null,
							offset: null
						}),
						chosen: choose,
						hover: setHovered,
						pick: (picked) => go({
							view: "sentence",
							row: picked,
							sentence: null
						}),
						picture
					})
				}),
				/* @__PURE__ */ a$1(Line$1, { row: hovered ?? row ?? null }),
				/* @__PURE__ */ a$1("p", {
					class: "note",
					children: [
						`${number(meta.shown)} of ${number(meta.total)} occurrences`,
						meta.shown < meta.total && `, drawn evenly with seed ${meta.seed}`,
						meta.explained && ` · the axes hold ${percent(meta.explained[0])} (across) and ${percent(meta.explained[1])} (up) of the variance`,
						meta.note && ` · ${meta.note}`
					]
				}),
				answer.status === "loading" && method === "umap" && /* @__PURE__ */ a$1(Loading, {
					what: "UMAP of this layer",
					progress: answer.progress
				})
			] }), /* @__PURE__ */ a$1("aside", { children: [meta.colors.length > 0 && /* @__PURE__ */ a$1(Legend, {
				meta,
				counts,
				hidden,
				toggle,
				title: color
			}), /* @__PURE__ */ a$1(Chosen, {
				points,
				chosen
			})] })]
		}),
		meta && /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: /* @__PURE__ */ a$1(ExportMenu, {
				name: "map",
				params,
				picture: () => picture.current?.()
			})
		}), /* @__PURE__ */ a$1(PythonCall, { code: meta.python })] })
	] });
}
/** The map of some parameters; of very many points first that of some of them. Rows that are known are not asked again. */
function useMap(params) {
	const many = params.method === "pca" && params.sample > FIRST;
	const { layer, color, ...same } = params;
	const key = JSON.stringify(same);
	const known = T(null);
	const parts = w$2(() => known.current?.key === key ? "points" : "all", [
		key,
		layer,
		color
	]);
	const first = useQuery("map", many ? {
		...params,
		sample: FIRST
	} : null);
	const more = !many || first.status === "done" && first.value.meta.total > FIRST;
	const every = useQuery("map", more ? {
		...params,
		parts
	} : null, { progress: params.method === "umap" });
	const shown = T(void 0);
	if (every.status === "done") {
		shown.current = every.value;
		if (shown.current.arrays.row) known.current = {
			key,
			row: shown.current.arrays.row
		};
		else shown.current.arrays.row = known.current.row;
	} else if (first.status === "done") shown.current = first.value;
	return {
		...more ? every : first,
		value: shown.current
	};
}
/** Coordinates from -1 to 1 at every layer, so that layers of any size can follow each other; in place, as they are many. */
function normalized({ meta, arrays }) {
	const extent = meta.extent || 1;
	const [x, y] = [arrays.x.values, arrays.y.values];
	if (extent !== 1) {
		for (let i = 0; i < x.length; i++) [x[i], y[i]] = [x[i] / extent, y[i] / extent];
		meta.regions = meta.regions.map((region) => ({
			...region,
			x: region.x / extent,
			y: region.y / extent
		}));
		meta.extent = 1;
	}
	return {
		x,
		y,
		row: arrays.row.values,
		color: arrays.color.values,
		regions: meta.regions
	};
}
function outline(text) {
	const pairs = (text ?? "").split(";").map((pair) => pair.split(",").map(Number));
	return pairs.length > 2 && pairs.every((pair) => pair.length === 2 && pair.every(Number.isFinite)) ? pairs : null;
}
/** How many points have each colour; the last is those without. */
function tally(codes, count) {
	const counts = new Array(count + 1).fill(0);
	for (const code of codes) counts[code < 0 ? count : code]++;
	return counts;
}
/** The colours; each hides and shows its points. */
function Legend({ meta, counts, hidden, toggle, title }) {
	const codes = [...meta.colors.keys(), ...counts[meta.colors.length] ? [-1] : []];
	return /* @__PURE__ */ a$1("section", {
		"aria-label": "Colours",
		children: [/* @__PURE__ */ a$1("h2", { children: title }), /* @__PURE__ */ a$1("ul", {
			class: "legend",
			children: codes.map((code) => /* @__PURE__ */ a$1("li", { children: /* @__PURE__ */ a$1("button", {
				type: "button",
				"aria-pressed": !hidden.has(code),
				title: hidden.has(code) ? "Show these points" : "Hide these points",
				onClick: () => toggle(code),
				children: [
					/* @__PURE__ */ a$1("svg", {
						width: "10",
						height: "10",
						"aria-hidden": "true",
						children: /* @__PURE__ */ a$1("circle", {
							cx: "5",
							cy: "5",
							r: "5",
							style: { fill: swatch(code, meta.colors.length, meta.scale === "ordered") }
						})
					}),
					/* @__PURE__ */ a$1("bdi", { children: code < 0 ? "none" : meta.colors[code] }),
					/* @__PURE__ */ a$1("span", {
						class: "number",
						children: number(counts[code < 0 ? meta.colors.length : code])
					})
				]
			}) }, code))
		})]
	});
}
/** The occurrence under the pointer, or the one that was found. */
function Line$1({ row }) {
	const { index } = useApp();
	const [settled, setSettled] = d$2(row);
	A$2(() => {
		const wait = setTimeout(() => setSettled(row), 60);
		return () => clearTimeout(wait);
	}, [row]);
	const found = useQuery("occurrences", settled === null ? null : {
		store: index,
		rows: String(settled),
		limit: 1
	});
	const one = found.value?.rows[0];
	return /* @__PURE__ */ a$1("p", {
		class: "map-line",
		"aria-live": "polite",
		"aria-busy": settled !== row || found.status === "loading",
		children: one && settled !== null ? /* @__PURE__ */ a$1($, { children: [
			/* @__PURE__ */ a$1("bdi", { children: one.left.slice(-120) }),
			/* @__PURE__ */ a$1("mark", { children: /* @__PURE__ */ a$1("bdi", { children: one.word }) }),
			/* @__PURE__ */ a$1("bdi", { children: one.right.slice(0, 120) })
		] }) : /* @__PURE__ */ a$1("span", {
			class: "muted",
			children: "Point at a dot for its line; click for its sentence; hold Shift and draw to select."
		})
	});
}
/** The occurrences inside the lasso, else all, as a table: a way to every point without a pointer. */
function Chosen({ points, chosen }) {
	const { index, values, go } = useApp();
	const total = chosen ? chosen.length : points.row.length;
	const offset = Math.min(Number(values.offset) || 0, Math.max(0, total - 1));
	const rows = Array.from({ length: Math.max(0, Math.min(SIZE$1, total - offset)) }, (_, place) => points.row[chosen ? chosen[offset + place] : offset + place]);
	const found = useQuery("occurrences", rows.length ? {
		store: index,
		rows: rows.join(","),
		limit: SIZE$1
	} : null);
	const all = chosen && chosen.length <= 500 ? Array.from(chosen, (point) => points.row[point]).join(",") : rows.join(",");
	return /* @__PURE__ */ a$1("section", {
		"aria-label": "Points",
		"aria-busy": found.status === "loading",
		children: [
			/* @__PURE__ */ a$1("div", {
				class: "toolbar tight",
				children: [/* @__PURE__ */ a$1("h2", { children: chosen ? `${number(total)} selected` : "All points" }), /* @__PURE__ */ a$1(Pager, {
					total,
					size: SIZE$1
				})]
			}),
			chosen && !total && /* @__PURE__ */ a$1("p", {
				class: "note",
				children: "No point lies inside the outline at this layer."
			}),
			found.error && /* @__PURE__ */ a$1("p", {
				class: "note warn",
				children: found.error
			}),
			rows.length > 0 && found.value && /* @__PURE__ */ a$1(Concordance, {
				rows: found.value.rows,
				extra: [{
					name: "find",
					title: /* @__PURE__ */ a$1("span", {
						class: "sr",
						children: "On the map"
					}),
					cell: (row) => /* @__PURE__ */ a$1("button", {
						type: "button",
						class: "link",
						"aria-label": `Show row ${row.row} on the map`,
						onClick: () => go({ row: row.row }, { replace: true }),
						children: "find"
					})
				}]
			}),
			chosen && total > 0 && /* @__PURE__ */ a$1(ExportMenu, {
				name: "occurrences",
				params: {
					store: index,
					rows: all
				}
			})
		]
	});
}
var map = {
	name: "map",
	title: "Map",
	needs: ["map"],
	component: MapView
};
// src/views/neighbors.tsx
function NeighborsView() {
	const { index, store, values, go } = useApp();
	const { row, word, text, where } = values;
	const chosen = layersOf(values.layers, store.layers);
	const query = text ? { text } : row ? { row } : word ? { word } : null;
	const params = query && {
		store: index,
		...query,
		layers: [...new Set(chosen)].join(),
		k: Number(values.k) || 10,
		where
	};
	const answer = useQuery("neighbors", params, { progress: true });
	const hovered = w$2(() => y$2(null), []);
	const ask = (typed) => go(/\[.+\]/s.test(typed) ? {
		text: typed,
		word: null,
		row: null
	} : {
		text: null,
		word: typed,
		row: null
	});
	return /* @__PURE__ */ a$1($, { children: [
		/* @__PURE__ */ a$1("div", {
			class: "toolbar",
			children: [
				/* @__PURE__ */ a$1(WordBox, {
					label: "Of",
					value: text ?? (row ? "" : word ?? ""),
					placeholder: "A word, or: They sat on the [bank] of the river",
					choose: ask
				}),
				/* @__PURE__ */ a$1(Filters, {}),
				/* @__PURE__ */ a$1("label", {
					class: "field",
					children: [/* @__PURE__ */ a$1("span", { children: "k" }), /* @__PURE__ */ a$1("select", {
						value: values.k ?? "10",
						onChange: (event) => go({ k: event.currentTarget.value }),
						children: [
							5,
							10,
							20,
							50,
							100
						].map((k) => /* @__PURE__ */ a$1("option", {
							value: String(k),
							children: k
						}, k))
					})]
				})
			]
		}),
		!query && /* @__PURE__ */ a$1(Empty, {
			title: "Nearest neighbours, exactly",
			children: "Give a word, a sentence with one word in [brackets], or choose an occurrence in another view."
		}),
		/* @__PURE__ */ a$1(Answer, {
			of: answer,
			what: "neighbours",
			children: (found) => /* @__PURE__ */ a$1($, { children: [
				/* @__PURE__ */ a$1("div", {
					class: "toolbar tight",
					children: [/* @__PURE__ */ a$1("h2", {
						class: "quote",
						children: [found.query.left || found.query.right ? /* @__PURE__ */ a$1("bdi", { children: [
							found.query.left.slice(-120),
							" ",
							/* @__PURE__ */ a$1("mark", { children: found.query.word }),
							" ",
							found.query.right.slice(0, 120)
						] }) : /* @__PURE__ */ a$1("bdi", { children: /* @__PURE__ */ a$1("mark", { children: found.query.word }) }), found.query.count > 1 && /* @__PURE__ */ a$1("span", {
							class: "tag",
							children: ["mean of ", found.query.count.toLocaleString("en")]
						})]
					}), params && /* @__PURE__ */ a$1(ExportMenu, {
						name: "neighbors",
						params
					})]
				}),
				/* @__PURE__ */ a$1("div", {
					class: "columns",
					children: chosen.map((layer, position) => /* @__PURE__ */ a$1("section", {
						"aria-label": `Layer ${layer}`,
						children: [/* @__PURE__ */ a$1("label", {
							class: "field",
							children: [/* @__PURE__ */ a$1("span", { children: "Layer" }), /* @__PURE__ */ a$1("select", {
								value: String(layer),
								onChange: (event) => go({ layers: chosen.map((old, at) => at === position ? Number(event.currentTarget.value) : old).join() }),
								children: store.layers.map((each) => /* @__PURE__ */ a$1("option", {
									value: String(each),
									children: each
								}, each))
							})]
						}), /* @__PURE__ */ a$1("ol", {
							class: "neighbors",
							children: found.layers.find((one) => one.layer === layer)?.neighbors.map((each) => /* @__PURE__ */ a$1(Line, {
								neighbor: each,
								hovered
							}, each.row))
						})]
					}, position))
				}),
				/* @__PURE__ */ a$1(PythonCall, { code: found.python })
			] })
		})
	] });
}
/** One neighbour; the same row in the other columns is marked while the pointer or the focus is on it. */
function Line({ neighbor, hovered }) {
	const { row, similarity, left, word, right, sentence } = neighbor;
	const mark = () => hovered.value = row;
	const unmark = () => hovered.value = null;
	return /* @__PURE__ */ a$1("li", {
		class: hovered.value === row ? "same" : void 0,
		onMouseEnter: mark,
		onMouseLeave: unmark,
		onFocusCapture: mark,
		onBlurCapture: unmark,
		children: [
			/* @__PURE__ */ a$1("span", {
				class: "number",
				children: similarity.toFixed(3)
			}),
			/* @__PURE__ */ a$1("meter", {
				min: 0,
				max: 1,
				value: Math.max(0, similarity),
				"aria-hidden": "true"
			}),
			/* @__PURE__ */ a$1(Link, {
				to: {
					view: "neighbors",
					row,
					word: null,
					text: null
				},
				class: "strong",
				title: "Its neighbours",
				children: /* @__PURE__ */ a$1("bdi", { children: word })
			}),
			/* @__PURE__ */ a$1(Link, {
				to: {
					view: "sentence",
					row,
					sentence
				},
				class: "context",
				title: "Open the sentence",
				children: /* @__PURE__ */ a$1("bdi", { children: [
					ending(left, 24),
					" ",
					/* @__PURE__ */ a$1("b", { children: word }),
					" ",
					right.slice(0, 80)
				] })
			})
		]
	});
}
/** The layers of the address that the store has; without any, its first, its middle and its last. */
function layersOf(given, layers) {
	const asked = (given ?? "").split(",").filter(Boolean).map(Number).filter((layer) => layers.includes(layer));
	return asked.length ? asked : [.../* @__PURE__ */ new Set([
		layers[0],
		layers[layers.length >> 1],
		layers.at(-1)
	])];
}
var neighbors = {
	name: "neighbors",
	title: "Neighbours",
	needs: ["neighbors"],
	component: NeighborsView
};
// src/sentence/matrix.tsx
var [LEAST, MOST] = [14, 34];
var shortened = (word) => [...word].length > 14 ? `${[...word].slice(0, 13).join("")}…` : word;
/** A matrix over the words of a sentence: cells stay large enough for their words, and only those in sight are drawn. */
function Matrix({ label, words, values, canvas, low, high }) {
	const place = T(null);
	const pointer = T(null);
	const [at, setAt] = d$2(null);
	const [width, setWidth] = d$2(0);
	const n = words.length;
	const head = 14 + 7 * Math.max(4, ...words.map((word) => shortened(word).length));
	const [least, most] = w$2(() => {
		const found = [Infinity, -Infinity];
		for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (i !== j) {
			found[0] = Math.min(found[0], values[i * n + j]);
			found[1] = Math.max(found[1], values[i * n + j]);
		}
		return [low ?? found[0], high ?? found[1]];
	}, [
		values,
		low,
		high
	]);
	const cell = Math.max(LEAST, Math.min(MOST, Math.floor((Math.min(width, 860) - head) / n)));
	const size = head + n * cell;
	const draw = () => {
		const box = place.current;
		const shown = canvas.current;
		const ratio = devicePixelRatio || 1;
		const [wide, tall] = [Math.min(size, box.clientWidth), Math.min(size, box.clientHeight)];
		[shown.width, shown.height] = [Math.round(wide * ratio), Math.round(tall * ratio)];
		[shown.style.width, shown.style.height] = [`${wide}px`, `${tall}px`];
		const pen = shown.getContext("2d");
		const style = getComputedStyle(box);
		const probe = box.appendChild(document.createElement("span"));
		const ends = ["var(--heat-low)", "var(--heat-high)"].map((value) => {
			probe.style.color = value;
			return getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
		});
		probe.remove();
		pen.scale(ratio, ratio);
		pen.fillStyle = getComputedStyle(document.body).backgroundColor;
		pen.fillRect(0, 0, wide, tall);
		const [left, top] = [box.scrollLeft, box.scrollTop];
		const columns = [Math.max(0, Math.floor(left / cell)), Math.min(n, Math.ceil((left + wide - head) / cell))];
		const rows = [Math.max(0, Math.floor(top / cell)), Math.min(n, Math.ceil((top + tall - head) / cell))];
		pen.save();
		pen.beginPath();
		pen.rect(head, head, wide - head, tall - head);
		pen.clip();
		for (let row = rows[0]; row < rows[1]; row++) for (let column = columns[0]; column < columns[1]; column++) {
			const share = Math.max(0, Math.min(1, (values[row * n + column] - least) / (most - least || 1)));
			pen.fillStyle = `rgb(${[
				0,
				1,
				2
			].map((i) => Math.round(ends[0][i] * (1 - share) + ends[1][i] * share)).join(" ")})`;
			pen.fillRect(head + column * cell - left, head + row * cell - top, cell - 1, cell - 1);
		}
		pen.restore();
		pen.font = `${Math.min(12, cell - 2)}px ${style.fontFamily}`;
		pen.textBaseline = "middle";
		const ink = (chosen) => {
			pen.fillStyle = style.color;
			pen.globalAlpha = chosen ? 1 : .75;
		};
		pen.textAlign = "right";
		pen.save();
		pen.beginPath();
		pen.rect(0, head, head, tall - head);
		pen.clip();
		for (let row = rows[0]; row < rows[1]; row++) {
			ink(at?.[0] === row);
			pen.fillText(shortened(words[row]), head - 5, head + (row + .5) * cell - top);
		}
		pen.restore();
		pen.textAlign = "left";
		pen.beginPath();
		pen.rect(head, 0, wide - head, head);
		pen.clip();
		for (let column = columns[0]; column < columns[1]; column++) {
			pen.save();
			ink(at?.[1] === column);
			pen.translate(head + (column + .5) * cell - left, head - 5);
			pen.rotate(-Math.PI / 2);
			pen.fillText(shortened(words[column]), 0, 0);
			pen.restore();
		}
	};
	F$1(() => {
		const measure = () => setWidth(place.current.clientWidth);
		const observer = new ResizeObserver(measure);
		observer.observe(place.current);
		measure();
		return () => observer.disconnect();
	}, []);
	/** Finds the cell under the pointer, which may rest while the cells come or move. */
	const aim = () => {
		const [box, event] = [place.current, pointer.current];
		const { left, top } = box.getBoundingClientRect();
		const column = event ? Math.floor((event.clientX - left + box.scrollLeft - head) / cell) : -1;
		const row = event ? Math.floor((event.clientY - top + box.scrollTop - head) / cell) : -1;
		const next = row >= 0 && column >= 0 && row < n && column < n ? [row, column] : null;
		setAt((before) => String(before) === String(next) ? before : next);
	};
	const point = (event) => {
		pointer.current = event;
		aim();
	};
	F$1(aim, [words, width]);
	F$1(() => void (width && draw()), [
		values,
		width,
		at,
		dark.value,
		least,
		most
	]);
	const found = at && at[0] < n && at[1] < n && [
		words[at[0]],
		words[at[1]],
		values[at[0] * n + at[1]].toFixed(3)
	];
	return /* @__PURE__ */ a$1("div", {
		class: "matrix",
		children: [/* @__PURE__ */ a$1("div", {
			ref: place,
			class: "matrix-scroll",
			tabIndex: 0,
			role: "region",
			"aria-label": label,
			"aria-busy": !width,
			onScroll: () => {
				aim();
				draw();
			},
			onPointerEnter: point,
			onPointerMove: point,
			onPointerLeave: () => point(null),
			children: /* @__PURE__ */ a$1("div", {
				style: {
					width: `${size}px`,
					height: `${size}px`
				},
				children: /* @__PURE__ */ a$1("canvas", {
					ref: canvas,
					role: "img",
					"aria-label": label
				})
			})
		}), /* @__PURE__ */ a$1("p", {
			class: "note",
			children: [
				/* @__PURE__ */ a$1("span", {
					class: "scale",
					"aria-hidden": "true"
				}),
				`${least.toFixed(2)} to ${most.toFixed(2)}`,
				found && /* @__PURE__ */ a$1($, { children: [
					" · ",
					/* @__PURE__ */ a$1("bdi", { children: found[0] }),
					" × ",
					/* @__PURE__ */ a$1("bdi", { children: found[1] }),
					": ",
					/* @__PURE__ */ a$1("b", { children: found[2] })
				] })
			]
		})]
	});
}
// src/sentence/arcs.tsx
/** A tree as arcs over its words; the word of least predicted depth is the root. */
function Arcs({ words, edges, depths }) {
	const centers = [];
	let width = 12;
	for (const word of words) {
		const own = 7.4 * [...word].length + 14;
		centers.push(width + own / 2);
		width += own;
	}
	const inTree = new Set(edges.flatMap(([one, other]) => [one, other]));
	const root = depths && [...inTree].reduce((best, one) => best < 0 || depths[one] < depths[best] ? one : best, -1);
	const farthest = Math.max(1, ...edges.map(([one, other]) => other - one));
	const height = 30 + Math.min(260, 18 * farthest);
	const rise = (reach) => (height - 30) * Math.pow(reach / farthest, .7);
	return /* @__PURE__ */ a$1("div", {
		class: "scroll chart",
		tabIndex: 0,
		role: "region",
		"aria-label": "Tree",
		children: /* @__PURE__ */ a$1("svg", {
			class: "arcs",
			width,
			height: height + 16,
			role: "img",
			"aria-label": edges.map(([one, other]) => `${words[one]} – ${words[other]}`).join(", "),
			children: [edges.map(([one, other, distance]) => {
				const [from, to, top] = [
					centers[one],
					centers[other],
					height - 8 - rise(other - one)
				];
				return /* @__PURE__ */ a$1("path", {
					d: `M${from},${height - 8}C${from},${top} ${to},${top} ${to},${height - 8}`,
					children: /* @__PURE__ */ a$1("title", { children: `${words[one]} – ${words[other]}: squared distance ${distance.toFixed(2)}` })
				}, `${one}-${other}`);
			}), words.map((word, position) => /* @__PURE__ */ a$1("text", {
				x: centers[position],
				y: height + 8,
				class: position === root ? "root" : inTree.has(position) ? void 0 : "out",
				children: word
			}, position))]
		})
	});
}
// src/views/sentence.tsx
function SentenceView() {
	const { index, values, go } = useApp();
	const answer = useQuery("sentence", {
		store: index,
		sentence: values.sentence,
		row: values.sentence === void 0 ? values.row : void 0
	});
	const [number, setNumber] = d$2("");
	return /* @__PURE__ */ a$1(Answer, {
		of: answer,
		what: "the sentence",
		children: (one) => /* @__PURE__ */ a$1($, { children: [
			/* @__PURE__ */ a$1("form", {
				class: "toolbar",
				onSubmit: (event) => {
					event.preventDefault();
					const wanted = Number(number);
					if (number && Number.isInteger(wanted)) go({
						sentence: Math.max(0, Math.min(one.sentences - 1, wanted)),
						row: null
					});
				},
				children: [
					/* @__PURE__ */ a$1("button", {
						type: "button",
						disabled: one.sentence === 0,
						onClick: () => go({
							sentence: one.sentence - 1,
							row: null
						}),
						children: "Previous"
					}),
					/* @__PURE__ */ a$1("label", {
						class: "field",
						children: [
							/* @__PURE__ */ a$1("span", { children: "Sentence" }),
							/* @__PURE__ */ a$1("input", {
								type: "text",
								inputMode: "numeric",
								class: "narrow",
								placeholder: String(one.sentence),
								value: number,
								onInput: (event) => setNumber(event.currentTarget.value)
							}),
							/* @__PURE__ */ a$1("span", { children: `of ${one.sentences.toLocaleString("en")}` })
						]
					}),
					/* @__PURE__ */ a$1("button", {
						type: "button",
						disabled: one.sentence + 1 >= one.sentences,
						onClick: () => go({
							sentence: one.sentence + 1,
							row: null
						}),
						children: "Next"
					}),
					/* @__PURE__ */ a$1(LayerSlider, {})
				]
			}),
			/* @__PURE__ */ a$1(Words, { of: one }),
			/* @__PURE__ */ a$1(Similarities, { of: one }),
			one.probes.filter((probe) => probe.kind === "structural").map((probe) => /* @__PURE__ */ a$1(Tree, {
				of: one,
				probe: probe.name
			}, probe.name)),
			one.probes.filter((probe) => probe.kind === "edge").map((probe) => /* @__PURE__ */ a$1(Trace, {
				of: one,
				probe: probe.name
			}, probe.name)),
			one.probes.length === 0 && /* @__PURE__ */ a$1("p", {
				class: "note",
				children: "Start embstore explore with --probes to see the trees and labels that saved probes find here."
			}),
			one.attention && /* @__PURE__ */ a$1(Heads, { of: one }),
			/* @__PURE__ */ a$1(PythonCall, { code: one.python })
		] })
	});
}
/** The words, each with its label below, leading to its neighbours. */
function Words({ of: one }) {
	const { values, go } = useApp();
	const names = Object.keys(one.labels);
	const label = values.label && names.includes(values.label) ? values.label : names.includes("upos") ? "upos" : names[0];
	return /* @__PURE__ */ a$1("section", {
		"aria-label": "Words",
		children: [names.length > 0 && /* @__PURE__ */ a$1("label", {
			class: "field",
			children: [/* @__PURE__ */ a$1("span", { children: "Label" }), /* @__PURE__ */ a$1("select", {
				value: label,
				onChange: (event) => go({ label: event.currentTarget.value }, { replace: true }),
				children: names.map((name) => /* @__PURE__ */ a$1("option", {
					value: name,
					children: name
				}, name))
			})]
		}), /* @__PURE__ */ a$1("ol", {
			class: "sentence-words",
			dir: "auto",
			children: one.words.map((word, position) => {
				const row = one.rows[position];
				return /* @__PURE__ */ a$1("li", {
					class: row !== null && String(row) === values.row ? "chosen" : void 0,
					children: [row === null || row === void 0 ? /* @__PURE__ */ a$1("bdi", {
						class: "muted",
						children: word
					}) : /* @__PURE__ */ a$1(Link, {
						to: {
							view: "neighbors",
							row,
							word: null,
							text: null,
							offset: null
						},
						title: `Neighbours of row ${row}`,
						children: /* @__PURE__ */ a$1("bdi", { children: word })
					}), label && /* @__PURE__ */ a$1("small", { children: one.labels[label][position] ?? " " })]
				}, position);
			})
		})]
	});
}
function Similarities({ of: one }) {
	const { index, layer } = useApp();
	const params = {
		store: index,
		sentence: one.sentence,
		layer
	};
	const found = useQuery("similarity", params);
	const canvas = T(null);
	return /* @__PURE__ */ a$1("section", {
		"aria-label": "Similarity",
		children: [/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: [/* @__PURE__ */ a$1("h2", { children: `Similarity of the words at layer ${layer} (cosine)` }), /* @__PURE__ */ a$1(ExportMenu, {
				name: "similarity",
				params,
				picture: () => canvas.current
			})]
		}), /* @__PURE__ */ a$1(Answer, {
			of: found,
			what: "similarities",
			children: ({ meta, arrays }) => meta.words.length < 2 ? /* @__PURE__ */ a$1(Empty, {
				title: "One word",
				children: "There is nothing to compare it with."
			}) : /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1(Matrix, {
				label: `Cosine of every two words at layer ${meta.layer}`,
				words: meta.words,
				values: arrays.values.values,
				canvas
			}), /* @__PURE__ */ a$1(PythonCall, { code: meta.python })] })
		})]
	});
}
function Tree({ of: one, probe }) {
	const { index, layer } = useApp();
	const params = {
		store: index,
		sentence: one.sentence,
		probe,
		layer
	};
	const best = useQuery("parse", {
		store: index,
		sentence: one.sentence,
		probe
	});
	const here = best.value?.layers.includes(layer);
	const found = useQuery("parse", here ? params : null);
	return /* @__PURE__ */ a$1("section", {
		"aria-label": `Parse by ${probe}`,
		children: [/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: [/* @__PURE__ */ a$1("h2", { children: `Tree that the structural probe ${probe} finds at layer ${here ? layer : best.value?.layer ?? layer}` }), /* @__PURE__ */ a$1(ExportMenu, {
				name: "parse",
				params: here ? params : {
					store: index,
					sentence: one.sentence,
					probe
				},
				picture: true
			})]
		}), /* @__PURE__ */ a$1(Answer, {
			of: here ? found : best,
			what: "the tree",
			children: (tree) => /* @__PURE__ */ a$1($, { children: [
				/* @__PURE__ */ a$1(Arcs, {
					words: tree.words,
					edges: tree.edges,
					depths: tree.depths
				}),
				best.value && /* @__PURE__ */ a$1("p", {
					class: "note",
					children: `The probe was best on its dev trees at layer ${best.value.layer}. Edges have no direction; punctuation is left out.`
				}),
				/* @__PURE__ */ a$1(PythonCall, { code: tree.python })
			] })
		})]
	});
}
function Trace({ of: one, probe }) {
	const { index } = useApp();
	const [second, setSecond] = d$2();
	const [word, setWord] = d$2(0);
	const params = {
		store: index,
		sentence: one.sentence,
		probe,
		second
	};
	const found = useQuery("traces", params);
	return /* @__PURE__ */ a$1("section", {
		"aria-label": `Labels by ${probe}`,
		children: [/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: [/* @__PURE__ */ a$1("h2", { children: `Labels that the edge probe ${probe} gives, reading layers 0 to ℓ` }), /* @__PURE__ */ a$1(ExportMenu, {
				name: "traces",
				params
			})]
		}), /* @__PURE__ */ a$1(Answer, {
			of: found,
			what: "label traces",
			children: ({ meta, arrays }) => {
				const values = arrays.values.values;
				const [targets, labels] = [meta.words.length, meta.labels.length];
				const at = (place, target, label) => values[(place * targets + target) * labels + label];
				const best = (place, target) => meta.labels.reduce((most, _, label) => at(place, target, label) > at(place, target, most) ? label : most, 0);
				const chosen = Math.min(word, targets - 1);
				const total = (label) => meta.layers.reduce((sum, _, place) => sum + at(place, chosen, label), 0);
				const gold = meta.gold?.[chosen];
				const top = [...meta.labels.keys()].sort((a, b) => total(b) - total(a)).slice(0, 3);
				const known = gold ? meta.labels.indexOf(gold) : -1;
				if (known >= 0 && !top.includes(known)) top[2] = known;
				return /* @__PURE__ */ a$1($, { children: [
					meta.second !== null && /* @__PURE__ */ a$1("label", {
						class: "field",
						children: [/* @__PURE__ */ a$1("span", { children: "Pairs with" }), /* @__PURE__ */ a$1("select", {
							value: String(meta.second),
							onChange: (event) => setSecond(Number(event.currentTarget.value)),
							children: one.words.map((text, position) => /* @__PURE__ */ a$1("option", {
								value: String(position),
								children: `${position + 1} ${text}`
							}, position))
						})]
					}),
					/* @__PURE__ */ a$1("div", {
						class: "scroll traces",
						tabIndex: 0,
						role: "region",
						"aria-label": "The likeliest label of each word, by the layers that are read",
						children: /* @__PURE__ */ a$1("table", { children: [/* @__PURE__ */ a$1("thead", { children: /* @__PURE__ */ a$1("tr", { children: [
							/* @__PURE__ */ a$1("th", {
								scope: "col",
								children: "Word"
							}),
							meta.gold && /* @__PURE__ */ a$1("th", {
								scope: "col",
								children: "Label"
							}),
							meta.layers.map((layer) => /* @__PURE__ */ a$1("th", {
								scope: "col",
								children: `0–${layer}`
							}, layer))
						] }) }), /* @__PURE__ */ a$1("tbody", { children: meta.words.map((text, target) => /* @__PURE__ */ a$1("tr", {
							class: target === chosen ? "chosen" : void 0,
							children: [
								/* @__PURE__ */ a$1("th", {
									scope: "row",
									children: /* @__PURE__ */ a$1("button", {
										type: "button",
										class: "link",
										"aria-pressed": target === chosen,
										onClick: () => setWord(target),
										children: /* @__PURE__ */ a$1("bdi", { children: text })
									})
								}),
								meta.gold && /* @__PURE__ */ a$1("td", {
									class: "value",
									children: meta.gold[target] ?? ""
								}),
								meta.layers.map((layer, place) => {
									const label = best(place, target);
									const right = meta.gold && meta.gold[target] === meta.labels[label];
									return /* @__PURE__ */ a$1("td", {
										title: `${(100 * at(place, target, label)).toFixed(0)} %`,
										class: meta.gold && !right ? "wrong" : void 0,
										style: { background: `color-mix(in srgb, var(--accent) ${(30 * at(place, target, label)).toFixed(0)}%, transparent)` },
										children: meta.labels[label]
									}, layer);
								})
							]
						}, target)) })] })
					}),
					/* @__PURE__ */ a$1("h3", { children: `Probability of labels of “${meta.words[chosen]}”${gold ? `, labelled ${gold}` : ""}` }),
					/* @__PURE__ */ a$1(LayerCurves, {
						title: `Probability of labels of ${meta.words[chosen]}`,
						label: "probability",
						points: top.flatMap((label) => meta.layers.map((layer, place) => ({
							layer,
							series: meta.labels[label],
							value: at(place, chosen, label)
						})))
					}),
					/* @__PURE__ */ a$1("p", {
						class: "note",
						children: [meta.gold ? "Labels other than the store's are in red; the likelier, the darker the cell. " : "The likelier a label, the darker its cell. ", "Choose a word for its curves."]
					}),
					/* @__PURE__ */ a$1(PythonCall, { code: meta.python })
				] });
			}
		})]
	});
}
/** The heads of a layer, small, and one of them large. */
function Heads({ of: one }) {
	const { index, layer, values, go } = useApp();
	const [asked, setAsked] = d$2(values.head !== void 0);
	const block = Math.max(1, layer);
	const params = {
		store: index,
		sentence: one.sentence,
		layer: block
	};
	const found = useQuery("attention", asked ? params : null);
	const head = Number(values.head) || 0;
	const canvas = T(null);
	return /* @__PURE__ */ a$1("section", {
		"aria-label": "Attention",
		children: [
			/* @__PURE__ */ a$1("div", {
				class: "toolbar tight",
				children: [/* @__PURE__ */ a$1("h2", { children: `Attention of block ${block}` }), asked && /* @__PURE__ */ a$1(ExportMenu, {
					name: "attention",
					params,
					picture: () => canvas.current
				})]
			}),
			!asked && /* @__PURE__ */ a$1("p", { children: [
				/* @__PURE__ */ a$1("button", {
					type: "button",
					onClick: () => setAsked(true),
					children: "Load the model"
				}),
				" ",
				/* @__PURE__ */ a$1("span", {
					class: "note",
					children: "Attention is not stored: the model computes it again."
				})
			] }),
			/* @__PURE__ */ a$1(Answer, {
				of: found,
				what: "the model and its attention",
				children: ({ meta, arrays }) => {
					const every = arrays.values.values;
					const size = meta.subwords.length ** 2;
					const of = (number) => every.subarray(number * size, (number + 1) * size);
					const chosen = Math.min(head, meta.heads.length - 1);
					return /* @__PURE__ */ a$1($, { children: [
						/* @__PURE__ */ a$1("ul", {
							class: "heads",
							children: meta.heads.map((number) => /* @__PURE__ */ a$1("li", { children: /* @__PURE__ */ a$1("button", {
								type: "button",
								"aria-pressed": number === chosen,
								"aria-label": `Head ${number}`,
								onClick: () => go({ head: number }, { replace: true }),
								children: [/* @__PURE__ */ a$1(Thumbnail, {
									values: of(number),
									n: meta.subwords.length
								}), /* @__PURE__ */ a$1("span", { children: number })]
							}) }, number))
						}),
						/* @__PURE__ */ a$1("h3", { children: `Head ${chosen} of block ${meta.layer}: each row is what a subword attends to` }),
						/* @__PURE__ */ a$1(Matrix, {
							label: `Attention of head ${chosen} of block ${meta.layer}`,
							words: meta.subwords,
							values: of(chosen),
							canvas,
							low: 0,
							high: 1
						}),
						/* @__PURE__ */ a$1(PythonCall, { code: meta.python })
					] });
				}
			})
		]
	});
}
function Thumbnail({ values, n }) {
	const canvas = T(null);
	const pixels = w$2(() => {
		const image = new ImageData(n, n);
		for (let i = 0; i < values.length; i++) image.data.set([
			20,
			110,
			170,
			Math.round(255 * Math.sqrt(values[i]))
		], 4 * i);
		return image;
	}, [values, n]);
	A$2(() => canvas.current.getContext("2d").putImageData(pixels, 0, 0), [pixels]);
	return /* @__PURE__ */ a$1("canvas", {
		ref: canvas,
		width: n,
		height: n
	});
}
var sentence = {
	name: "sentence",
	title: "Sentence",
	needs: ["sentence"],
	component: SentenceView
};
// src/views/word.tsx
var SIZE = 50;
var MOST_ROWS = 4e3;
function WordView() {
	const { index, layer, values, source, go } = useApp();
	const { word, sense } = values;
	const senses = useQuery("senses", word && source.has("senses") ? {
		store: index,
		word,
		layer,
		clusters: values.clusters
	} : null, { progress: true });
	const codes = new Map(senses.value?.rows.map((row, at) => [row, senses.value.codes[at]]));
	const rows = sense && senses.value ? senses.value.rows.filter((row) => codes.get(row) === Number(sense)).slice(0, MOST_ROWS).join() : void 0;
	const waiting = sense !== void 0 && word !== void 0 && senses.status === "loading" && rows === void 0;
	const params = {
		store: index,
		word,
		where: values.where,
		rows,
		sort: values.sort,
		descending: values.desc ? true : void 0
	};
	const occurrences = useQuery("occurrences", waiting ? null : {
		...params,
		offset: Number(values.offset) || 0,
		limit: SIZE
	});
	const coded = codes.size ? [{
		name: "sense",
		title: /* @__PURE__ */ a$1("span", {
			class: "sr",
			children: "Sense"
		}),
		class: "sense",
		cell: (row) => /* @__PURE__ */ a$1(Code, { code: codes.get(row.row) })
	}] : [];
	return /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("div", {
		class: "toolbar",
		children: [/* @__PURE__ */ a$1(WordBox, {
			label: "Word",
			value: word ?? "",
			placeholder: "Type a word",
			choose: (text) => go({
				word: text,
				sense: null,
				offset: null,
				row: null
			})
		}), /* @__PURE__ */ a$1(Filters, {})]
	}), /* @__PURE__ */ a$1("div", {
		class: "split",
		children: [/* @__PURE__ */ a$1("section", {
			class: "primary",
			"aria-label": "Concordance",
			children: /* @__PURE__ */ a$1(Answer, {
				of: occurrences,
				what: "occurrences",
				children: (answer) => /* @__PURE__ */ a$1($, { children: [
					/* @__PURE__ */ a$1("div", {
						class: "toolbar tight",
						children: [
							/* @__PURE__ */ a$1("h2", { children: [word ? /* @__PURE__ */ a$1("bdi", { children: word }) : "All words", sense && /* @__PURE__ */ a$1("span", {
								class: "tag",
								children: ["sense ", Number(sense) + 1]
							})] }),
							/* @__PURE__ */ a$1(Pager, {
								total: answer.total,
								size: SIZE
							}),
							/* @__PURE__ */ a$1(ExportMenu, {
								name: "occurrences",
								params
							})
						]
					}),
					answer.total === 0 ? /* @__PURE__ */ a$1(Empty, {
						title: "No occurrence",
						children: "Nothing fulfils this. Change the word or the condition."
					}) : /* @__PURE__ */ a$1(Concordance, {
						rows: answer.rows,
						columns: answer.columns,
						extra: coded,
						sortable: true
					}),
					/* @__PURE__ */ a$1(PythonCall, { code: answer.python })
				] })
			})
		}), /* @__PURE__ */ a$1("aside", {
			class: "secondary",
			"aria-label": word ? "The word" : "Frequent words",
			children: word ? /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1(SelfSimilarity, { word }), source.has("senses") && /* @__PURE__ */ a$1(SenseList, { of: senses })] }) : /* @__PURE__ */ a$1(FrequentWords, {})
		})]
	})] });
}
/** The mark of a cluster: a colour and a number, so that the colour alone says nothing. */
function Code({ code }) {
	if (code === void 0 || code < 0) return /* @__PURE__ */ a$1("span", {
		class: "code none",
		children: "·"
	});
	return /* @__PURE__ */ a$1("span", {
		class: "code",
		ref: (element) => void element?.style.setProperty("--code", color(code)),
		children: code + 1
	});
}
function SelfSimilarity({ word }) {
	const { index, layer, source } = useApp();
	const answer = useQuery("word", source.has("word") ? {
		store: index,
		word
	} : null, { progress: true });
	return /* @__PURE__ */ a$1("section", { children: [/* @__PURE__ */ a$1("div", {
		class: "toolbar tight",
		children: [/* @__PURE__ */ a$1("h2", { children: "Self-similarity" }), /* @__PURE__ */ a$1(ExportMenu, {
			name: "word",
			params: {
				store: index,
				word
			},
			picture: true
		})]
	}), /* @__PURE__ */ a$1(Answer, {
		of: answer,
		what: "self-similarity",
		children: (found) => {
			const of = (series, values) => found.layers.map((each, at) => ({
				layer: each,
				series,
				value: values[at] ?? null
			}));
			return /* @__PURE__ */ a$1($, { children: [
				/* @__PURE__ */ a$1(LayerCurves, {
					title: `Self-similarity of ${word} by layer, next to the mean over words and to random words`,
					label: "cosine",
					height: 190,
					layer,
					points: [
						...of("this word", found.selfsimilarity),
						...of("all words", found.corpus),
						...of("random", found.anisotropy)
					]
				}),
				found.selfsimilarity.every((value) => value === null) && /* @__PURE__ */ a$1("p", {
					class: "note",
					children: "One occurrence has no self-similarity."
				}),
				/* @__PURE__ */ a$1(PythonCall, {
					folded: true,
					code: found.python
				})
			] });
		}
	})] });
}
function SenseList({ of }) {
	const { index, layer, values, go } = useApp();
	return /* @__PURE__ */ a$1("section", { children: [
		/* @__PURE__ */ a$1("div", {
			class: "toolbar tight",
			children: [/* @__PURE__ */ a$1("h2", { children: "Senses" }), /* @__PURE__ */ a$1(ExportMenu, {
				name: "senses",
				params: {
					store: index,
					word: values.word,
					layer,
					clusters: values.clusters
				}
			})]
		}),
		/* @__PURE__ */ a$1(LayerSlider, {}),
		/* @__PURE__ */ a$1(Answer, {
			of,
			what: "senses",
			children: (answer) => {
				const total = answer.clusters.reduce((sum, one) => sum + one.count, 0);
				return /* @__PURE__ */ a$1($, { children: [
					answer.caveat && /* @__PURE__ */ a$1("p", {
						class: "note warn",
						children: answer.caveat
					}),
					/* @__PURE__ */ a$1("ol", {
						class: "senses",
						children: answer.clusters.map((one) => {
							const chosen = values.sense === String(one.cluster);
							return /* @__PURE__ */ a$1("li", { children: /* @__PURE__ */ a$1("button", {
								type: "button",
								"aria-pressed": chosen,
								onClick: () => go({
									sense: chosen ? null : one.cluster,
									offset: null
								}),
								children: [/* @__PURE__ */ a$1("span", {
									class: "line",
									children: [
										/* @__PURE__ */ a$1(Code, { code: one.cluster }),
										/* @__PURE__ */ a$1("span", {
											class: "markers",
											children: one.markers.length ? one.markers.map((marker) => /* @__PURE__ */ a$1("bdi", { children: marker }, marker)) : /* @__PURE__ */ a$1("span", {
												class: "muted",
												children: "no word marks it"
											})
										}),
										/* @__PURE__ */ a$1("span", {
											class: "number",
											children: [
												one.count.toLocaleString("en"),
												" · ",
												Math.round(100 * one.count / Math.max(1, total)),
												" %"
											]
										})
									]
								}), one.examples.slice(0, 1).map((example) => /* @__PURE__ */ a$1("span", {
									class: "example",
									children: /* @__PURE__ */ a$1("bdi", { children: [
										ending(example.left, 24),
										" ",
										/* @__PURE__ */ a$1("b", { children: example.word }),
										" ",
										example.right.slice(0, 60)
									] })
								}, example.row))]
							}) }, one.cluster);
						})
					}),
					/* @__PURE__ */ a$1("p", {
						class: "note",
						children: [
							answer.silhouette !== null && `Silhouette ${answer.silhouette.toFixed(2)}. `,
							"Clusters of vectors of layer ",
							answer.layer,
							"; the words are those that mark each."
						]
					}),
					/* @__PURE__ */ a$1(PythonCall, {
						folded: true,
						code: answer.python
					})
				] });
			}
		})
	] });
}
function FrequentWords() {
	const { index, source } = useApp();
	const answer = useQuery("complete", source.has("complete") ? {
		store: index,
		prefix: "",
		limit: 60
	} : null);
	return /* @__PURE__ */ a$1("section", { children: [/* @__PURE__ */ a$1("h2", { children: "Frequent words" }), /* @__PURE__ */ a$1(Answer, {
		of: answer,
		what: "words",
		children: ({ words }) => /* @__PURE__ */ a$1("ul", {
			class: "words",
			children: words.map(({ word, count }) => /* @__PURE__ */ a$1("li", { children: [
				/* @__PURE__ */ a$1(Link, {
					to: {
						word,
						offset: null,
						sense: null
					},
					children: /* @__PURE__ */ a$1("bdi", { children: word })
				}),
				" ",
				/* @__PURE__ */ a$1("span", {
					class: "number",
					children: count.toLocaleString("en")
				})
			] }, word))
		})
	})] });
}
// src/views/index.ts
/** The views, in the order of the navigation: a new view is one file and one name here. */
var VIEWS = [
	{
		name: "word",
		title: "Word",
		needs: ["occurrences"],
		component: WordView
	},
	map,
	neighbors,
	layers,
	sentence,
	compare
];
// src/shell.tsx
/** Shows the explorer in an element. */
function mount(element, source, state) {
	Q(/* @__PURE__ */ a$1(Page, {
		source,
		state
	}), element);
}
/** Takes the explorer out of its element. */
function unmount(element) {
	Q(null, element);
}
function Page({ source, state }) {
	const [stores, setStores] = d$2();
	const [error, setError] = d$2();
	const [tries, setTries] = d$2(0);
	A$2(() => {
		setError(void 0);
		source.query("stores", {}).then(setStores, (problem) => setError(problem.message));
	}, [source, tries]);
	if (error) return /* @__PURE__ */ a$1(ErrorState, {
		error,
		retry: () => setTries(tries + 1)
	});
	if (!stores) return /* @__PURE__ */ a$1(Loading, { what: "the stores" });
	return /* @__PURE__ */ a$1(AppContext.Provider, {
		value: {
			source,
			stores,
			state,
			views: VIEWS.filter((view) => view.needs.every((name) => source.has(name)))
		},
		children: /* @__PURE__ */ a$1(Shell, {})
	});
}
function Shell() {
	const { views, state, values, store } = useApp();
	const view = views.find((one) => one.name === values.view) ?? views[0];
	A$2(() => {
		if (state.titled) document.title = [
			values.word,
			view.title,
			store.name,
			"embstore"
		].filter(Boolean).join(" · ");
	}, [
		values.word,
		view,
		store
	]);
	return /* @__PURE__ */ a$1($, { children: [
		/* @__PURE__ */ a$1("a", {
			class: "skip",
			href: "#main",
			children: "Skip to the view"
		}),
		/* @__PURE__ */ a$1("header", {
			class: "bar",
			children: [
				/* @__PURE__ */ a$1("span", {
					class: "brand",
					children: "embstore"
				}),
				/* @__PURE__ */ a$1("nav", {
					"aria-label": "Views",
					children: views.map((one) => /* @__PURE__ */ a$1(Link, {
						to: {
							view: one.name,
							offset: null
						},
						current: one === view,
						children: one.title
					}, one.name))
				}),
				view.name === "compare" ? /* @__PURE__ */ a$1("span", { class: "store" }) : /* @__PURE__ */ a$1(StorePicker, {}),
				/* @__PURE__ */ a$1(ThemeSwitch, {})
			]
		}),
		/* @__PURE__ */ a$1("main", {
			id: "main",
			tabIndex: -1,
			class: `view view-${view.name}`,
			children: [/* @__PURE__ */ a$1("h1", {
				class: "sr",
				children: view.title
			}), /* @__PURE__ */ a$1(view.component, {}, view.name)]
		})
	] });
}
function ThemeSwitch() {
	const other = dark.value ? "light" : "dark";
	return /* @__PURE__ */ a$1("button", {
		type: "button",
		class: "quiet icon",
		"aria-label": `Switch to ${other} colours`,
		title: `Switch to ${other} colours`,
		onClick: () => setTheme(other),
		children: /* @__PURE__ */ a$1("svg", {
			viewBox: "0 0 16 16",
			width: "16",
			height: "16",
			"aria-hidden": "true",
			children: [/* @__PURE__ */ a$1("circle", {
				cx: "8",
				cy: "8",
				r: "6.2",
				fill: "none",
				stroke: "currentColor",
				"stroke-width": "1.5"
			}), /* @__PURE__ */ a$1("path", {
				d: "M8 1.8a6.2 6.2 0 0 1 0 12.4z",
				fill: "currentColor"
			})]
		})
	});
}
// src/style.css?inline
var style_default = ":root {\n  color-scheme: light dark;\n  --ground: light-dark(#fff, #131518);\n  --panel: light-dark(#f6f7f8, #1a1d21);\n  --raised: light-dark(#fff, #22262b);\n  --line: light-dark(#e3e5e8, #2c3137);\n  --control: light-dark(#868d96, #727a84);\n  --text: light-dark(#1b1f24, #e6e8eb);\n  --muted: light-dark(#59616b, #a0a8b2);\n  --accent: light-dark(#0b66a0, #6cb8ea);\n  --accent-ground: light-dark(#e8f2f9, #17303f);\n  --error: light-dark(#a8370a, #ff9d70);\n  /* Okabe and Ito's colours, darker or lighter where the ground asks for it */\n  --c0: light-dark(#0072b2, #4aa8e0);\n  --c1: light-dark(#b87700, #e69f00);\n  --c2: light-dark(#008a64, #1fbf92);\n  --c3: light-dark(#d55e00, #f0853a);\n  --c4: light-dark(#b0528a, #d98bb8);\n  --c5: light-dark(#2b87ba, #7cc7f0);\n  --c6: light-dark(#857a00, #f0e442);\n  --c7: light-dark(#6f6f6f, #9a9a9a);\n  --mono: ui-monospace, \"SF Mono\", \"Cascadia Mono\", Menlo, Consolas, \"DejaVu Sans Mono\", monospace;\n  --sans: system-ui, -apple-system, \"Segoe UI\", Roboto, \"Helvetica Neue\", \"Noto Sans\", \"Liberation Sans\", sans-serif;\n}\n:root[data-theme=\"light\"] { color-scheme: light; }\n:root[data-theme=\"dark\"] { color-scheme: dark; }\n\n* { box-sizing: border-box; }\nhtml { font: 13px/1.45 var(--sans); }\nbody { margin: 0; background: var(--ground); color: var(--text); -webkit-font-smoothing: antialiased; }\nh1, h2, h3, p, ul, ol, figure, pre { margin: 0; }\nul, ol { padding: 0; list-style: none; }\nh2 { font-size: 1rem; font-weight: 650; letter-spacing: -0.005em; }\nh3 { font-size: 1rem; font-weight: 600; }\na { color: var(--accent); text-decoration: none; }\na:hover { text-decoration: underline; }\n:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; border-radius: 3px; }\nmain:focus-visible { outline: none; }\n[hidden] { display: none !important; }\n.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }\n.skip { position: absolute; left: 8px; top: -60px; z-index: 20; padding: 8px 12px; background: var(--raised); }\n.skip:focus { top: 4px; }\n.number, .numbers, output, td.number, th.number { font-variant-numeric: tabular-nums; }\n.muted, .note { color: var(--muted); }\n.note { font-size: 12px; }\n.warn { color: var(--error); }\n.mono { font-family: var(--mono); font-size: 12px; }\n.strong { font-weight: 650; }\nmark { padding: 0 2px; border-radius: 3px; background: var(--accent-ground); color: var(--text); }\n.tag { padding: 1px 6px; border: 1px solid var(--line); border-radius: 9px; color: var(--muted); font-size: 11px; font-weight: 500; white-space: nowrap; }\n.tag.warn { border-color: currentColor; color: var(--error); }\n\n/* Controls */\nbutton, input, select { font: inherit; color: inherit; }\nbutton, select, input[type=\"text\"] {\n  height: 28px; padding: 0 9px; border: 1px solid var(--control); border-radius: 5px; background: var(--raised);\n}\ninput[type=\"text\"] { width: 100%; min-width: 0; }\ninput::placeholder { color: var(--muted); opacity: 1; }\nbutton { cursor: pointer; }\nbutton:hover:not(:disabled), select:hover { border-color: var(--accent); }\nbutton:disabled { opacity: 0.4; cursor: default; }\nbutton.quiet { padding: 0 7px; border-color: transparent; background: none; color: var(--muted); }\nbutton.quiet:hover:not(:disabled) { background: var(--panel); color: var(--text); border-color: transparent; }\nbutton.link { height: auto; padding: 0; border: 0; background: none; color: var(--accent); }\nbutton.link:hover { text-decoration: underline; }\nbutton.icon { display: grid; place-items: center; width: 28px; padding: 0; }\nselect { padding-right: 4px; }\n.field { display: flex; align-items: center; gap: 6px; min-width: 0; }\n.field label, label.field { display: flex; align-items: center; gap: 6px; }\n.field .grow { flex: 1; min-width: 0; }\n.field span, .slider span { color: var(--muted); white-space: nowrap; }\n.field .narrow { width: 82px; }\n.slider { display: flex; align-items: center; gap: 8px; }\n.slider input { width: 110px; accent-color: var(--accent); margin: 0; }\n.slider output { min-width: 2ch; font-weight: 650; }\n\n/* The shell */\n.bar {\n  position: sticky; top: 0; z-index: 10; display: flex; align-items: center; gap: 18px; min-height: 44px; padding: 0 16px;\n  border-bottom: 1px solid var(--line); background: var(--ground);\n}\n.brand { font-weight: 700; letter-spacing: -0.02em; }\n.bar nav { display: flex; flex-wrap: wrap; gap: 2px; }\n.bar nav a { padding: 4px 9px; border-radius: 5px; color: var(--muted); }\n.bar nav a:hover { background: var(--panel); color: var(--text); text-decoration: none; }\n.bar nav a[aria-current] { background: var(--accent-ground); color: var(--accent); font-weight: 600; }\n.store { display: flex; align-items: center; gap: 8px; min-width: 0; }\n.bar .store { margin-left: auto; }\n.store .facts { overflow: hidden; color: var(--muted); font-size: 12px; font-variant-numeric: tabular-nums; text-overflow: ellipsis; white-space: nowrap; }\n.view { display: flex; flex-direction: column; gap: 12px; padding: 12px 16px 24px; container-type: inline-size; }\n.toolbar { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 16px; }\n.toolbar > .combo { flex: 1 1 240px; max-width: 520px; }\n.toolbar > form.field { flex: 1 1 280px; max-width: 560px; }\n.toolbar.tight { min-height: 28px; gap: 4px 14px; }\n.toolbar.tight h2 { flex: 1 1 120px; display: flex; flex-wrap: wrap; align-items: center; gap: 8px; min-width: 0; overflow-wrap: anywhere; }\nsection { min-width: 0; }\nsection, .answer, aside { display: flex; flex-direction: column; gap: 8px; }\n.answer { transition: opacity 0.12s 0.15s; }\n.answer.busy { opacity: 0.5; }\n.split { display: grid; grid-template-columns: minmax(0, 1fr) 340px; gap: 24px; align-items: start; }\n.secondary { gap: 20px; min-width: 0; }\n.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 24px 32px; align-items: start; }\n.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 20px; }\n.layers { display: grid; grid-template-columns: 3fr 2fr; gap: 24px 40px; align-items: start; }\n.layers .wide { grid-column: 1 / -1; }\n.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 310px), 1fr)); gap: 12px 24px; }\n.toolbar.tight h3 { flex: 1 1 120px; }\n.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 0; }\n.side { gap: 12px; container-type: inline-size; }\n.side:first-child { padding-right: 16px; }\n.side:last-child { padding-left: 16px; border-left: 1px solid var(--line); }\n@container (max-width: 900px) {\n  .split, .layers { grid-template-columns: minmax(0, 1fr); }\n  .sides { grid-template-columns: minmax(0, 1fr); gap: 24px; }\n  .side:first-child { padding: 0; }\n  .side:last-child { padding: 16px 0 0; border: 0; border-top: 1px solid var(--line); }\n}\n@media (max-width: 900px) {\n  .bar { position: static; flex-wrap: wrap; gap: 4px 14px; padding: 8px 16px; }\n  .bar nav { order: 1; flex-basis: 100%; margin-left: -9px; }\n  .bar .facts { display: none; }\n}\n\n/* States */\n.state { display: flex; flex-direction: column; align-items: center; gap: 8px; padding: 48px 16px; color: var(--muted); text-align: center; }\n.state strong { color: var(--text); }\n.state p { max-width: 60ch; overflow-wrap: anywhere; }\n.state.error strong { color: var(--error); }\n.state progress { width: 160px; height: 4px; accent-color: var(--accent); }\n\n/* Completion */\n.combo { position: relative; }\n.combo > button { position: absolute; right: 2px; height: 24px; }\n.combo ul {\n  position: absolute; top: 32px; left: 0; right: 0; z-index: 15; max-height: 360px; overflow: auto; padding: 4px;\n  border: 1px solid var(--line); border-radius: 6px; background: var(--raised); box-shadow: 0 8px 24px rgb(0 0 0 / 18%);\n}\n.combo li { display: flex; justify-content: space-between; gap: 12px; padding: 3px 8px; border-radius: 4px; cursor: pointer; }\n.combo li bdi { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }\n.combo li .number { color: var(--muted); }\n.combo li:hover, .combo li[aria-selected=\"true\"] { background: var(--accent-ground); }\n\n/* Tables */\n.scroll { max-width: 100%; overflow: auto; border: 1px solid var(--line); border-radius: 6px; }\ntable { width: 100%; border-collapse: collapse; }\nth { position: sticky; top: 0; padding: 4px 8px; border-bottom: 1px solid var(--line); background: var(--panel); color: var(--muted); font-size: 12px; font-weight: 500; text-align: left; white-space: nowrap; }\ntd { padding: 3px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }\ntbody tr:last-child td { border-bottom: 0; }\ntbody tr:hover { background: var(--panel); }\nbutton.sort { height: auto; padding: 0; border: 0; background: none; color: inherit; font-weight: 500; }\nbutton.sort:hover { color: var(--text); }\nth[aria-sort] { color: var(--text); }\ntd.number, th.number { text-align: right; }\ntd.left, td.right { width: 42%; min-width: 190px; max-width: 0; overflow: hidden; }\ntd.left, th.left { text-align: right; }\ntd.left { direction: rtl; text-overflow: ellipsis; }\ntd.left bdi { unicode-bidi: isolate; }\ntd.right { text-overflow: ellipsis; }\ntd.word, th.word { text-align: center; }\ntd.word { max-width: 220px; overflow: hidden; font-weight: 650; text-overflow: ellipsis; }\ntd.value { max-width: 140px; overflow: hidden; color: var(--muted); font-size: 12px; text-overflow: ellipsis; }\ntd.links { font-size: 12px; }\ntd.links a { margin-left: 8px; color: var(--muted); }\ntd.links a:hover, td.links a:focus-visible { color: var(--accent); }\ntd.sense, th.sense { padding-right: 0; }\n.pager { display: flex; align-items: center; color: var(--muted); }\n.pager .quiet { min-width: 24px; }\n.export { display: flex; gap: 8px; font-size: 12px; }\n.export .label { color: var(--muted); }\n.export button { font-size: 12px; }\n\n/* Python */\n.python { position: relative; border: 1px solid var(--line); border-radius: 6px; background: var(--panel); }\n.python summary { padding: 4px 10px; }\n.python details[open] summary { margin: 0; }\n.python pre { padding: 2px 10px 8px; overflow: auto; font: 11.5px/1.5 var(--mono); }\n.python button { position: absolute; top: 0; right: 0; font-size: 12px; }\n\n/* Word */\n.code {\n  display: inline-grid; place-items: center; min-width: 16px; height: 16px; padding: 0 3px; border: 1.5px solid var(--code); border-radius: 8px;\n  color: var(--text); font-size: 10.5px; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1;\n}\n.code.none { border-color: transparent; color: var(--muted); }\n.senses { display: flex; flex-direction: column; gap: 2px; }\n.senses button { display: flex; flex-direction: column; gap: 1px; width: 100%; height: auto; padding: 6px 8px; border-color: transparent; background: none; text-align: start; }\n.senses button:hover { background: var(--panel); }\n.senses button[aria-pressed=\"true\"] { border-color: var(--accent); background: var(--accent-ground); }\n.senses .line { display: flex; align-items: baseline; gap: 8px; }\n.senses .markers { flex: 1; display: flex; flex-wrap: wrap; gap: 0 8px; font-weight: 600; overflow-wrap: anywhere; }\n.senses .markers .muted { font-weight: 400; }\n.senses .number { color: var(--muted); font-size: 12px; white-space: nowrap; }\n.senses .example { overflow: hidden; color: var(--muted); font-size: 12px; text-overflow: ellipsis; white-space: nowrap; }\n.words { columns: 2; column-gap: 24px; }\n.words li { display: flex; justify-content: space-between; gap: 8px; padding: 1px 0; break-inside: avoid; }\n.words bdi { overflow-wrap: anywhere; }\n.words .number { color: var(--muted); }\n\n/* Neighbours */\n.quote { font-weight: 400; }\n.quote mark { font-weight: 650; }\n.neighbors li { display: grid; grid-template-columns: 5ch 44px minmax(40px, auto) minmax(0, 1fr); align-items: center; gap: 8px; padding: 3px 6px; border-bottom: 1px solid var(--line); }\n.neighbors li.same, .neighbors li:hover { background: var(--accent-ground); }\n.neighbors .strong, .neighbors .context { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }\n.neighbors .strong { max-width: 120px; }\n.neighbors .context { color: var(--muted); font-size: 12px; }\n.neighbors .context b { color: var(--text); font-weight: 600; }\nmeter { width: 44px; height: 6px; }\nmeter::-webkit-meter-bar { height: 6px; border: 0; border-radius: 3px; background: var(--line); }\nmeter::-webkit-meter-optimum-value { border-radius: 3px; background: var(--c0); }\n\n/* Charts */\n.chart { min-width: 0; color: var(--muted); font-size: 11px; }\n.chart svg { display: block; max-width: 100%; height: auto; overflow: visible; font: 11px var(--sans); font-variant-numeric: tabular-nums; background: none; }\n.chart svg text { white-space: pre; }\n.chart [aria-label=\"tip\"], .chart [data-mark=\"tip\"] { color: var(--text); }\ndetails summary { color: var(--muted); font-size: 12px; cursor: pointer; }\ndetails[open] summary { margin-bottom: 6px; }\n@media (prefers-reduced-motion: reduce) { * { transition: none !important; } }\n@media print { .bar nav, .export, .pager button { display: none; } }\n\n/* Map */\n:root { --map-none: light-dark(#b9bfc6, #565d66); --map-low: light-dark(#c9dbe8, #23465c); --map-high: light-dark(#08406b, #b5e3ff); }\n@container (min-width: 900.1px) { .map-split { grid-template-columns: minmax(0, 1fr) minmax(300px, 38%); } }\n.map-frame { position: relative; border: 1px solid var(--line); border-radius: 6px; overflow: hidden; }\n.map-box { position: relative; height: clamp(320px, 68vh, 900px); cursor: grab; touch-action: none; }\n.map-box:active { cursor: grabbing; }\n.map-box.drawing { cursor: crosshair; }\n.map-box canvas, .map-box svg { position: absolute; inset: 0; width: 100%; height: 100%; pointer-events: none; }\n.map-box .region { font-size: 12px; font-weight: 600; text-anchor: middle; fill: var(--text); stroke: var(--ground); stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }\n.map-box .lasso { fill: var(--accent); fill-opacity: 0.08; stroke: var(--accent); stroke-width: 1.5; }\n.map-box .found { fill: none; stroke: var(--text); stroke-width: 2; }\n.map-tools { position: absolute; top: 8px; right: 8px; display: flex; gap: 4px; }\n.map-tools button { min-width: 28px; height: 26px; padding: 0 8px; border-color: var(--line); }\n.map-tools button[aria-pressed=\"true\"] { border-color: var(--accent); background: var(--accent-ground); color: var(--accent); }\n.map-line { min-height: 1.5em; overflow: hidden; text-align: center; text-overflow: ellipsis; white-space: nowrap; }\n.legend { display: flex; flex-wrap: wrap; gap: 2px 4px; }\n.legend button { display: flex; align-items: center; gap: 6px; max-width: 260px; height: 24px; padding: 0 7px; border-color: transparent; background: none; }\n.legend button:hover { background: var(--panel); }\n.legend bdi { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }\n.legend .number { color: var(--muted); font-size: 12px; }\n.legend svg { flex: none; }\n.legend button[aria-pressed=\"false\"] { color: var(--muted); text-decoration: line-through; }\n.legend button[aria-pressed=\"false\"] svg { opacity: 0.3; }\n\n/* Sentence */\n:root { --heat-low: light-dark(#f3f6f8, #1b2127); --heat-high: light-dark(#08406b, #8fd0ff); }\n.sentence-words { display: flex; flex-wrap: wrap; gap: 4px 2px; max-height: 30vh; overflow: auto; }\n.sentence-words li { display: flex; flex-direction: column; align-items: center; padding: 1px 5px; border-radius: 4px; }\n.sentence-words li.chosen { background: var(--accent-ground); }\n.sentence-words a { color: var(--text); }\n.sentence-words small { color: var(--muted); font-size: 10.5px; }\n.matrix { display: flex; flex-direction: column; gap: 4px; }\n.matrix-scroll { max-height: max(76vh, 1000px); overflow: auto; }\n.matrix-scroll canvas { position: sticky; top: 0; left: 0; display: block; }\n.scale { display: inline-block; width: 80px; height: 9px; margin-right: 6px; border: 1px solid var(--line); background: linear-gradient(to right, var(--heat-low), var(--heat-high)); }\n.chart svg.arcs { max-width: none; }\n.arcs path { fill: none; stroke: var(--c0); stroke-width: 1.5; }\n.arcs path:hover { stroke: var(--c3); stroke-width: 3; }\n.arcs text { fill: var(--text); font-size: 12px; text-anchor: middle; }\n.arcs .root { font-weight: 700; text-decoration: underline; }\n.arcs .out { fill: var(--muted); }\n.traces { max-height: 60vh; }\n.traces td { font-size: 12px; }\n.traces td.wrong { color: var(--error); }\n.traces tr.chosen th { background: var(--accent-ground); }\n.heads { display: grid; grid-template-columns: repeat(auto-fill, minmax(84px, 1fr)); gap: 6px; max-width: 900px; }\n.heads button { display: flex; flex-direction: column; align-items: center; width: 100%; height: auto; padding: 4px; border-color: var(--line); }\n.heads button[aria-pressed=\"true\"] { border-color: var(--accent); background: var(--accent-ground); }\n.heads canvas { width: 72px; height: 72px; image-rendering: pixelated; }\n";
// src/safetensors.ts
var KINDS = {
	F64: Float64Array,
	F32: Float32Array,
	I32: Int32Array,
	U32: Uint32Array,
	I16: Int16Array,
	U16: Uint16Array,
	I8: Int8Array,
	U8: Uint8Array,
	BOOL: Uint8Array,
	I64: BigInt64Array
};
/** The arrays of a buffer, and the JSON that its header carries under `__metadata__.json`. */
function readSafetensors(buffer) {
	const length = Number(new DataView(buffer).getBigUint64(0, true));
	const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
	const arrays = {};
	for (const [name, { dtype, shape, data_offsets: [start, stop] }] of Object.entries(entries)) {
		const kind = KINDS[dtype];
		if (!kind) throw new Error(`an array of type ${dtype} cannot be shown`);
		const begin = 8 + length + start;
		arrays[name] = {
			values: begin % kind.BYTES_PER_ELEMENT ? new kind(buffer.slice(begin, begin + stop - start)) : new kind(buffer, begin, (stop - start) / kind.BYTES_PER_ELEMENT),
			shape
		};
	}
	return {
		meta: JSON.parse(metadata?.json ?? "{}"),
		arrays
	};
}
// src/widget_source.ts
/** The queries of the Python process that shows a widget, asked by messages. */
var WidgetSource = class {
	model;
	last = 0;
	waiting = /* @__PURE__ */ new Map();
	constructor(model) {
		this.model = model;
		model.on("msg:custom", this.receive);
	}
	close() {
		this.model.off("msg:custom", this.receive);
	}
	has(name) {
		return this.model.get("queries").includes(name);
	}
	selected(rows) {
		this.model.set("rows", rows);
		this.model.save_changes();
	}
	query(name, params, { signal, progress } = {}) {
		const id = ++this.last;
		return new Promise((done, failed) => {
			this.waiting.set(id, {
				done,
				failed,
				progress
			});
			signal?.addEventListener("abort", () => this.waiting.delete(id) && failed(signal.reason));
			const given = Object.entries(params).filter(([, value]) => value !== void 0);
			this.model.send({
				id,
				name,
				params: Object.fromEntries(given.map(([key, value]) => [key, String(value)]))
			});
		});
	}
	receive = ({ id, kind, error, progress }, buffers) => {
		const asked = this.waiting.get(id);
		if (!asked) return;
		if (progress) return asked.progress?.(...progress);
		this.waiting.delete(id);
		if (error !== void 0) return asked.failed(new Error(error));
		const { buffer, byteOffset, byteLength } = buffers[0];
		const bytes = buffer.slice(byteOffset, byteOffset + byteLength);
		asked.done(kind === "application/json" ? JSON.parse(new TextDecoder().decode(bytes)) : readSafetensors(bytes));
	};
};
// src/widget.ts
/** The explorer in a notebook: the page in a box of its own, whose styles and the notebook's do not meet. */
function render({ model, el }) {
	const root = el.attachShadow({ mode: "open" });
	const sheet = document.createElement("style");
	sheet.textContent = style_default.replace(/(:root|\bhtml\b)(\[[^\]]*\])?(?=[\s,{])/g, (_, __, theme) => theme ? `:host(${theme})` : ":host").replace(/(^|[\s,}])body(?=[\s,{])/g, "$1.box") + ":host{display:block}.box{position:relative;overflow:auto;border:1px solid var(--line)}";
	const box = document.createElement("div");
	box.className = "box";
	box.style.height = `${model.get("height")}px`;
	root.append(sheet, box);
	const source = new WidgetSource(model);
	const state = memoryState(model.get("state"));
	const stop = x$1(() => {
		const values = state.values.value;
		if (same(values, model.get("state"))) return;
		model.set("state", { ...values });
		model.save_changes();
	});
	const changed = () => {
		const values = model.get("state");
		const removed = Object.keys(state.values.peek()).filter((name) => !(name in values));
		if (!same(values, state.values.peek())) state.go({
			...Object.fromEntries(removed.map((name) => [name, null])),
			...values
		});
	};
	model.on("change:state", changed);
	mount(box, source, state);
	return () => {
		stop();
		model.off("change:state", changed);
		source.close();
		unmount(box);
	};
}
function same(one, other) {
	return JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort());
}
var widget_default = { render };
export { widget_default as default };
